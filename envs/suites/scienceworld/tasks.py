"""ScienceWorld's 30 kinds of tasks with their published variations as tasks. The same arguments make the same tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from gymcp.envs.spec import FIRST_DEMONSTRATION
from gymcp.envs.suites.scienceworld.installation import SCIENCEWORLD, install_scienceworld, is_installed
from gymcp.envs.suites.scienceworld.records import (
    Variation,
    make_records,
    read_record,
    read_splits,
    splits_are_made,
)
from gymcp.errors import ConfigError
from gymcp.mcp_servers.programs.scienceworld.simulator import FULL_SCORE
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.types import EpisodeLimits, GoldTurn, Json, Suite, Task, ToolCall

SPLITS = ("train", "dev", "test")
"""Upstream's own, of the variations of each task: a half, a quarter, a quarter."""
VERSION = "1"
TOPICS = {
    "Electricity": (
        *("power-component", "power-component-renewable-vs-nonrenewable-energy"),
        *("test-conductivity", "test-conductivity-of-unknown-substances"),
    ),
    "Matter": ("boil", "melt", "freeze", "change-the-state-of-matter-of"),
    "Measurement": (
        *("use-thermometer", "measure-melting-point-known-substance", "measure-melting-point-unknown-substance"),
    ),
    "Classification": ("find-living-thing", "find-non-living-thing", "find-plant", "find-animal"),
    "Biology": (
        *("grow-plant", "grow-fruit", "lifespan-longest-lived", "lifespan-shortest-lived"),
        *("lifespan-longest-lived-then-shortest-lived", "identify-life-stages-1", "identify-life-stages-2"),
        *("mendelian-genetics-known-plant", "mendelian-genetics-unknown-plant"),
    ),
    "Chemistry": ("chemistry-mix", "chemistry-mix-paint-secondary-color", "chemistry-mix-paint-tertiary-color"),
    "Forces": (
        *("inclined-plane-determine-angle", "inclined-plane-friction-named-surfaces"),
        "inclined-plane-friction-unnamed-surfaces",
    ),
}
FAMILIES = tuple(task for tasks in TOPICS.values() for task in tasks)
UPSTREAM_STEPS = 100
"""Upstream's own limit on the steps of an episode; a task whose gold is longer than half of it has twice its gold."""
ANSWER = "Say done when you have finished."
_TOPIC_OF = {task: topic for topic, tasks in TOPICS.items() for task in tasks}
_TEST_TASKS = 1
"""Test variations of each kind of task that are in the suite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A number of one kind of task, before its variation is played."""

    split: str
    candidates: tuple[Variation, ...]
    """The variation of the number, then those that take its place if upstream's gold does not solve it."""
    again: int
    """Times that all variations have come before."""

    def make_id(self, variation: Variation) -> str:
        """The id of the number's task, which is none of another number's, though their variations may be the same."""
        (name, number), (_, wanted) = variation, self.candidates[0]
        replaced = "" if number == wanted else f"-for-{wanted}"
        return f"{name}-{number}{replaced}" + (f"-again-{self.again}" if self.again else "")


@dataclass(frozen=True, slots=True)
class LazyTasks(Sequence[Task]):
    """Tasks whose records are made when they are taken: of one task, or of all when all are gone through."""

    slots: Sequence[Slot]
    sandbox: Sandbox | None

    def __len__(self) -> int:
        return len(self.slots)

    @overload
    def __getitem__(self, at: int) -> Task: ...
    @overload
    def __getitem__(self, at: slice) -> LazyTasks: ...
    def __getitem__(self, at: int | slice) -> Task | LazyTasks:
        if isinstance(at, slice):
            return LazyTasks(self.slots[at], self.sandbox)
        slot = self.slots[at]
        return _to_task(slot, *_take_solved(slot.candidates, self.sandbox))

    def __iter__(self) -> Iterator[Task]:
        make_records([slot.candidates[0] for slot in self.slots], self.sandbox)  # several in one run
        return (self[at] for at in range(len(self)))


def make_tasks(
    split: str,
    *,
    families: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    count: int = 4,
    first: int = 0,
    sandbox: Sandbox | None = None,
) -> Sequence[Task]:
    """`count` tasks for each family, numbered from `first`: variations of upstream's split, in its order.

    ``dev`` and ``test`` end with the last variation. In ``train`` the first one comes again, under another id; the last
    quarter has the numbers from `FIRST_DEMONSTRATION`. In place of a variation that upstream's own gold does not solve
    comes the next, under an id that names both. A task's record is made when the task is taken, in `sandbox` or in
    bubblewrap. Raises ConfigError for an unknown split or family, and for levels, of which there are none.
    """
    return LazyTasks(tuple(_list_slots(split, families, levels, range(first, first + count), sandbox)), sandbox)


def make_suite(sandbox: Sandbox | None = None) -> Suite:
    """The first test variations of each kind of task."""
    tasks = tuple(make_tasks("test", count=_TEST_TASKS, sandbox=sandbox))
    source = f"{SCIENCEWORLD.name}=={SCIENCEWORLD.version}"
    return Suite(name="scienceworld", version=VERSION, tasks=tasks, source=source)


def prepare(sandbox: Sandbox | None = None) -> None:
    """Fetch the simulator, and play what gold of the suite's tasks gymcp does not bring. Raises UsageError."""
    install_scienceworld()
    make_suite(sandbox)


def suite_is_made() -> bool:
    """True if nothing is left to fetch or to compute."""
    return is_installed() and splits_are_made() and all(_is_made(slot) for slot in list_suite_slots())


def list_suite_slots(sandbox: Sandbox | None = None) -> list[Slot]:
    """The slots of the suite's tasks. Asks the simulator for its splits, in `sandbox`, if they are not known."""
    return list(_list_slots("test", None, None, range(_TEST_TASKS), sandbox))


def _is_made(slot: Slot) -> bool:
    """True if the task needs no further record."""
    for variation in slot.candidates:
        record = read_record(variation)
        if record is None or record["solved"]:
            return record is not None
    return True


def _list_slots(
    split: str, families: Sequence[str] | None, levels: Sequence[int] | None, numbers: range, sandbox: Sandbox | None
) -> Iterator[Slot]:
    """One slot for each number and family, without those beyond the end of a split."""
    if split not in SPLITS:
        raise ConfigError(f"scienceworld: no split '{split}'; have {', '.join(SPLITS)}")
    if unknown := [name for name in families or () if name not in FAMILIES]:
        raise ConfigError(f"scienceworld: no family '{unknown[0]}'; have {', '.join(FAMILIES)}")
    if levels:
        raise ConfigError("scienceworld: has no levels; choose families instead")
    splits = read_splits(sandbox)
    for number in numbers:
        for name in families or FAMILIES:
            variations: Sequence[int] = splits[name][split]
            place = number
            if split == "train":
                variations, place = divide_training(variations, number)
            again, start = divmod(place, len(variations))
            if again == 0 or split == "train":
                order = (*variations[start:], *variations[:start])
                yield Slot(split=split, candidates=tuple((name, each) for each in order), again=again)


def divide_training(variations: Sequence[int], number: int) -> tuple[Sequence[int], int]:
    """The training variations among which a number counts, trained on or demonstrated, and its place among them."""
    trained = len(variations) * 3 // 4
    if number < FIRST_DEMONSTRATION:
        return variations[:trained], number
    return variations[trained:], number - FIRST_DEMONSTRATION


def _take_solved(candidates: Sequence[Variation], sandbox: Sandbox | None) -> tuple[Variation, Json]:
    """The first variation that its gold solves, with its record. Raises ConfigError if there is none."""
    for variation in candidates:
        (record,) = make_records([variation], sandbox)
        if record["solved"]:
            return variation, record
    raise ConfigError(f"scienceworld: upstream's gold solves no variation of {candidates[0][0]} in this split")


def _to_task(slot: Slot, variation: Variation, record: Json) -> Task:
    name, number = variation
    gold: list[str] = record["gold"]
    calls = (
        ToolCall(id=f"call_{place}", name="act", arguments={"action": action}) for place, action in enumerate(gold, 1)
    )
    return Task(
        id=slot.make_id(variation),
        prompts=(f"{_describe(record)} {ANSWER}\n{record['start'].strip()}",),
        initial_state={"task": name, "variation": number},
        target={"score": FULL_SCORE},
        gold=(GoldTurn(calls=tuple(calls), final_text="done"),),
        last_necessary=(0, len(gold) - 1),  # the gold ends with the first action after which all goals are reached
        limits=EpisodeLimits(steps=max(UPSTREAM_STEPS, 2 * len(gold))),
        split=slot.split,
        tags=(_TOPIC_OF[name], name, f"split {slot.split}"),
    )


def _describe(record: Json) -> str:
    text: str = record["description"]
    return " ".join(text.removeprefix("Task Description:").split())
