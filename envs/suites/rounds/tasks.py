"""Rounds as tasks: sequences of parcels drawn evenly. The same arguments always make the same tasks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gymcp.errors import ConfigError
from gymcp.mcp_servers.programs.rounds.house import PARCELS, SEALED_PARCEL, House, describe_parcel, make_house
from gymcp.types import EpisodeLimits, GoldTurn, Suite, Task, ToolCall

SPLITS = ("seeds", "sizes", "houses")
"""Test splits: other sequences of parcels; longer rounds; another house, whose tables differ."""
LEVELS = (1, 2, 3, 4, 5)
LARGER_LEVELS = (6,)
"""Levels of the split ``sizes``, and of no other."""
FAMILY = "round"
VERSION = "2"
HOUSE, OTHER_HOUSE = 0, 1
"""Numbers of the house in which all splits but ``houses`` are, and of that one's."""
DONE = "done"
"""Last message of the agent."""
_TEST_TASKS = 8
"""Test tasks in the suite, for each split and level."""
_TEST_FRACTION = 10
"""One of this many sequences is for tests; it divides the number of parcels, so that every name is as frequent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laboratory:
    """One of the environments with rounds of parcels."""

    name: str
    lengths: Mapping[int, int]
    """Parcels of a round, by level."""
    steps_per_parcel: float
    """Steps that an episode may have, for each parcel."""
    has_sealed_parcels: bool = False
    """True: some parcels show their names only to an agent that looks."""

    def find_sealed(self, house: House) -> frozenset[str]:
        """Parcels whose name does not show."""
        return house.sealed if self.has_sealed_parcels else frozenset()


ROUNDS = Laboratory(name="rounds", lengths={1: 4, 2: 8, 3: 12, 4: 16, 5: 24, 6: 32}, steps_per_parcel=2.5)
LOOKS = Laboratory(
    name="looks", lengths={1: 4, 2: 6, 3: 8, 4: 12, 5: 16, 6: 24}, steps_per_parcel=4, has_sealed_parcels=True
)


def make_tasks(
    laboratory: Laboratory,
    split: str,
    *,
    families: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    count: int = 4,
    first: int = 0,
) -> Iterator[Task]:
    """`count` tasks for each level, numbered from `first`; there is no last number.

    Splits are ``train``, ``seeds``, ``sizes`` (level 6, whichever levels are named) and ``houses``. No sequence of
    ``train`` is one of a test split. Raises ConfigError for an unknown split, family or level.
    """
    who = laboratory.name
    if split not in ("train", *SPLITS):
        raise ConfigError(f"{who}: no split '{split}'; have train, {', '.join(SPLITS)}")
    if unknown := [name for name in families or () if name != FAMILY]:
        raise ConfigError(f"{who}: no family '{unknown[0]}'; have {FAMILY}")
    if strange := [level for level in levels or () if level not in (*LEVELS, *LARGER_LEVELS)]:
        raise ConfigError(f"{who}: no level {strange[0]}; have {', '.join(map(str, LEVELS))}")
    have = LARGER_LEVELS if split == "sizes" else LEVELS
    chosen = [level for level in levels or have if level in have] or have
    return (_task(laboratory, split, level, number) for number in range(first, first + count) for level in chosen)


def make_suite(laboratory: Laboratory) -> Suite:
    """The suite of all test splits."""
    tasks = tuple(task for split in SPLITS for task in make_tasks(laboratory, split, count=_TEST_TASKS))
    return Suite(name=laboratory.name, version=VERSION, tasks=tasks, source="generated")


def _task(laboratory: Laboratory, split: str, level: int, number: int) -> Task:
    task_id = f"{split}-{FAMILY}-{level}-{number}"
    parcels = _draw_parcels(f"{laboratory.name}-{task_id}", laboratory.lengths[level], for_tests=split != "train")
    number_of_house = OTHER_HOUSE if split == "houses" else HOUSE
    house = make_house(number_of_house)
    sealed = laboratory.find_sealed(house)
    calls = _gold_calls(house, parcels, sealed)
    return Task(
        id=task_id,
        prompts=(f"{_request(len(parcels), bool(sealed))}\n{_show(parcels[0], sealed)}",),
        initial_state={"parcels": list(parcels), "house": number_of_house},
        target={"at": len(parcels), "spoiled": False},
        gold=(GoldTurn(calls=calls, final_text=DONE),),
        last_necessary=(0, len(calls) - 1),
        limits=EpisodeLimits(steps=math.ceil(laboratory.steps_per_parcel * len(parcels))),
        split="train" if split == "train" else "test",
        tags=(FAMILY, f"level {level}", f"split {split}"),
    )


def _draw_parcels(seed: str, length: int, *, for_tests: bool) -> tuple[str, ...]:
    """Names drawn evenly; the sum of their numbers tells sequences for tests from those for training."""
    rng = random.Random(seed)
    while True:
        drawn = rng.choices(range(len(PARCELS)), k=length)
        if (sum(drawn) % _TEST_FRACTION == 0) == for_tests:
            return tuple(PARCELS[number] for number in drawn)


def _request(length: int, has_sealed_parcels: bool) -> str:
    sealed = " Look shows the name of a sealed parcel." if has_sealed_parcels else ""
    return (
        f"There are {length} parcels, one after the other. Each needs one of the tools, and nothing tells which."
        f"{sealed} Say {DONE} when no parcel is left."
    )


def _show(parcel: str, sealed: frozenset[str]) -> str:
    return SEALED_PARCEL if parcel in sealed else describe_parcel(parcel)


def _gold_calls(house: House, parcels: Sequence[str], sealed: frozenset[str]) -> tuple[ToolCall, ...]:
    """The right tool for each parcel, after a look if the parcel is sealed."""
    names = [name for parcel in parcels for name in (*(["look"] if parcel in sealed else []), house.right_tool(parcel))]
    return tuple(ToolCall(id=f"call_{number}", name=name) for number, name in enumerate(names, 1))
