"""Three of TextWorld's challenges at five levels as tasks. The same arguments always make the same tasks."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gymcp.envs.suites.textworld.games import Order, install_textworld, is_installed, is_made, make_games
from gymcp.errors import ConfigError
from gymcp.mcp_servers.programs.textworld.server import TextWorld
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.types import EpisodeLimits, GoldTurn, Json, Suite, Task, ToolCall, ToolOffer

FAMILIES = ("coin", "treasure", "cooking")
SPLITS = ("seeds", "foods", "sizes")
"""Test splits: ``seeds`` has games that no training task has, ``foods`` new foods as well, ``sizes`` larger houses."""
LEVELS = (1, 2, 3, 4, 5)
LARGER_LEVELS = (6,)
"""Levels of the split ``sizes``, and of no other."""
VERSION = "1"
STEPS = {1: 10, 2: 14, 3: 24, 4: 40, 5: 60, 6: 90}
"""Limit on the steps of an episode, by level."""

_COIN = {1: 2, 2: 5, 3: 105, 4: 110, 5: 115, 6: 225}
"""TextWorld's own level of a coin hunt, by ours: to 100 a chain of rooms, to 200 a dead end beside each, then two."""
_TREASURE = {1: 3, 2: 8, 3: 12, 4: 15, 5: 22, 6: 26}
"""TextWorld's own level of a treasure hunt, by ours: from 11 with doors and containers, from 21 with keys."""
_COOKING: Mapping[int, Mapping[str, Json]] = {
    1: {"recipe": 1, "take": 1, "go": 1},
    2: {"recipe": 1, "take": 1, "go": 1, "open": True, "cook": True},
    3: {"recipe": 2, "take": 2, "go": 1, "open": True, "cook": True, "cut": True},
    4: {"recipe": 2, "take": 2, "go": 6, "open": True, "cook": True, "cut": True},
    5: {"recipe": 3, "take": 3, "go": 9, "open": True, "cook": True, "cut": True},
    6: {"recipe": 4, "take": 4, "go": 12, "open": True, "cook": True, "cut": True},
}
_NO_SKILLS: Mapping[str, Json] = {"open": False, "cook": False, "cut": False, "drop": False, "recipe_seed": 0}

TOOLS = {
    "coin": ("look", "inventory", "examine", "commands", "go", "take", "drop"),
    "treasure": (
        *("look", "inventory", "examine", "commands", "go", "take", "drop", "open", "close"),
        *("unlock", "lock", "insert", "put", "eat"),
    ),
    "cooking": (
        *("look", "inventory", "examine", "commands", "go", "take", "drop", "open", "close", "insert", "put"),
        *("eat", "drink", "chop", "slice", "dice", "cook", "prepare_meal"),
    ),
}
_ALL = frozenset(name for names in TOOLS.values() for name in names)
ANSWER = "Say done when you have won."
_REQUESTS = {
    "coin": (
        "Somewhere in this house is a coin. Find it and take it.",
        "Take the coin that is in one of these rooms.",
        "Look for the coin and pick it up.",
    ),
    "treasure": (
        "Find the {wanted} and take it. Taking the {wrong} instead loses the game.",
        "Somewhere here is the {wanted}: take it, and leave the {wrong} where it is.",
        "Take the {wanted}, wherever it is, and never the {wrong}.",
    ),
    "cooking": (
        "Cook the meal of the cookbook in the kitchen, and eat it.",
        "You are hungry. Read the cookbook in the kitchen, prepare what it says, and eat the meal.",
        "In the kitchen is a cookbook. Get its ingredients, prepare them as it says, make the meal and eat it.",
    ),
}
MAX_SEEDS_TRIED = 12
_MADE_AHEAD = 16
"""Games that are made together: a training task's game, and those of the following numbers."""
_TEST_TASKS = 4
"""Test tasks for each split, family and level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One task before its game is made."""

    split: str
    family: str
    level: int
    number: int

    @property
    def id(self) -> str:
        return f"{self.split}-{self.family}-{self.level}-{self.number}"

    def order(self, attempt: int) -> Order:
        """The order of the task's game; its seed depends on the split, so that no two splits share a game."""
        digest = hashlib.sha256(f"{self.id}-{attempt}".encode()).digest()
        return Order(challenge=self.family, settings=tuple(self._settings().items()), seed=int.from_bytes(digest[:3]))

    def _settings(self) -> Mapping[str, Json]:
        if self.family == "cooking":
            foods = "test" if self.split == "foods" else "train"
            return {**_NO_SKILLS, **_COOKING[self.level], "split": foods}
        return {"level": (_COIN if self.family == "coin" else _TREASURE)[self.level]}


def make_tasks(
    split: str,
    *,
    families: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    count: int = 4,
    first: int = 0,
    sandbox: Sandbox | None = None,
) -> Iterator[Task]:
    """`count` tasks for each family and level, numbered from `first`; there is no last number.

    Splits are ``train``, ``seeds``, ``foods`` (cooking only) and ``sizes`` (level 6). Games that are not in the cache
    are made by TextWorld, in `sandbox` or in bubblewrap. Raises ConfigError for an unknown split, family or level.
    """
    kinds = list(_kinds(split, families, levels, count, first))
    games = _make_games(kinds, sandbox)
    return (_task(kind, games[kind]) for kind in kinds)


def make_suite(sandbox: Sandbox | None = None) -> Suite:
    """The suite of all test splits."""
    kinds = list(list_suite_kinds())
    games = _make_games(kinds, sandbox)
    tasks = tuple(_task(kind, games[kind]) for kind in kinds)
    return Suite(name="textworld", version=VERSION, tasks=tasks, source="TextWorld 1.7.0")


def prepare(sandbox: Sandbox | None = None) -> None:
    """Install TextWorld, which makes the games beyond the suite's, and the suite's own if gymcp does not bring them.

    Raises UsageError.
    """
    install_textworld()
    make_suite(sandbox)


def suite_is_made() -> bool:
    """True if nothing is left to fetch or to compute."""
    return is_installed() and all(is_made(kind.order(0)) for kind in list_suite_kinds())


def list_suite_kinds() -> Iterator[Kind]:
    """The suite's tasks before their games are made."""
    for split in SPLITS:
        yield from _kinds(split, None, None, _TEST_TASKS, 0)


def _kinds(
    split: str, families: Sequence[str] | None, levels: Sequence[int] | None, count: int, first: int
) -> Iterator[Kind]:
    if split not in ("train", *SPLITS):
        raise ConfigError(f"textworld: no split '{split}'; have train, {', '.join(SPLITS)}")
    if unknown := [name for name in families or () if name not in FAMILIES]:
        raise ConfigError(f"textworld: no family '{unknown[0]}'; have {', '.join(FAMILIES)}")
    have = LARGER_LEVELS if split == "sizes" else LEVELS
    if strange := [level for level in levels or () if level not in (*LEVELS, *LARGER_LEVELS)]:
        raise ConfigError(f"textworld: no level {strange[0]}; have {', '.join(map(str, LEVELS))}")
    for number in range(first, first + count):
        for family in families or FAMILIES:
            if split == "foods" and family != "cooking":
                continue
            for level in [level for level in levels or have if level in have] or have:
                yield Kind(split=split, family=family, level=level, number=number)


def _make_games(kinds: Sequence[Kind], sandbox: Sandbox | None) -> dict[Kind, Json]:
    """A game for each kind; if a seed gives no game, or none that is won within the steps, another seed is tried."""
    games: dict[Kind, Json] = {}
    for attempt in range(MAX_SEEDS_TRIED):
        remaining = [kind for kind in kinds if kind not in games]
        ahead = functools.partial(_orders_ahead, kinds if attempt == 0 else ())
        new_games = make_games([kind.order(attempt) for kind in remaining], sandbox, ahead)
        for kind, game in zip(remaining, new_games, strict=True):
            if is_playable(kind, game):
                games[kind] = game
    if missing := [kind.id for kind in kinds if kind not in games]:
        raise RuntimeError(f"textworld: no game for {missing[0]} in {MAX_SEEDS_TRIED} tries")
    return games


def is_playable(kind: Kind, game: Json) -> bool:
    """True if there is a game, and it is won within the steps of the kind's level."""
    return game is not None and len(game["gold"]) < STEPS[kind.level]


def _orders_ahead(kinds: Sequence[Kind]) -> list[Order]:
    """Orders of the games that will be needed soon: training, and tests drawn one by one, go on to the next numbers."""
    soon = [kind for kind in kinds if kind.split == "train" or len(kinds) == 1]
    starts = {replace(kind, number=kind.number // _MADE_AHEAD * _MADE_AHEAD) for kind in soon}
    return [replace(kind, number=kind.number + more).order(0) for kind in starts for more in range(_MADE_AHEAD)]


def _task(kind: Kind, made: Json) -> Task:
    game, calls, necessary = made["game"], made["gold"], made["last_necessary"]
    rng = random.Random(kind.id)
    request = rng.choice(_REQUESTS[kind.family]).format(**_slots(game, kind.family))
    return Task(
        id=kind.id,
        prompts=(f"{request} {ANSWER}\n{TextWorld(game).look()}",),
        initial_state={"game": game},
        target={"won": True, "score": sum(quest[0] for quest in game["quests"])},
        gold=(
            GoldTurn(
                calls=tuple(
                    ToolCall(id=f"call_{number}", name=name, arguments=arguments)
                    for number, (name, arguments) in enumerate(calls, 1)
                ),
                final_text="done",
            ),
        ),
        last_necessary=None if necessary is None else (0, necessary),
        offer=ToolOffer(withheld=(_ALL - set(TOOLS[kind.family]),)),
        limits=EpisodeLimits(steps=STEPS[kind.level]),
        split="train" if kind.split == "train" else "test",
        tags=(kind.family, f"level {kind.level}", f"split {kind.split}"),
    )


def _slots(game: Json, family: str) -> dict[str, str]:
    """Values for the slots of the wording: in a treasure hunt, the thing to take and the thing that loses the game."""
    if family != "treasure":
        return {}
    names = {entity: name for entity, (name, _) in game["names"].items()}
    (_, win, fail), *_ = game["quests"]
    return {
        what: next(names[f[1]] for f in event if f[0] == "in")
        for what, (event, *_) in (("wanted", win), ("wrong", fail))
    }
