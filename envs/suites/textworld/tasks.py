"""Three of TextWorld's challenges at five levels as tasks. The same arguments always make the same ones."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gymcp.envs.suites.textworld.games import Order, games_folder, install_textworld, is_installed, make_games
from gymcp.errors import ConfigError
from gymcp.mcp_servers.programs.textworld.server import TextWorld
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.types import EpisodeLimits, GoldTurn, Json, Suite, Task, ToolCall

FAMILIES = ("coin", "treasure", "cooking")
SPLITS = ("seeds", "foods", "sizes")
"""Test splits: games that no training task has; dishes of foods that none has, either; houses larger than any."""
LEVELS = (1, 2, 3, 4, 5)
LARGER = (6,)
"""Levels of the split ``sizes``, and of no other."""
VERSION = "1"
STEPS = {1: 10, 2: 14, 3: 24, 4: 40, 5: 60, 6: 90}
"""Actions of an episode, by level."""

_COIN = {1: 2, 2: 5, 3: 105, 4: 110, 5: 115, 6: 225}
"""TextWorld's own levels: up to 100 a chain of rooms, up to 200 a dead end beside each, beyond it two."""
_TREASURE = {1: 3, 2: 8, 3: 12, 4: 15, 5: 22, 6: 26}
"""TextWorld's own levels: from 11 with doors and containers, from 21 with keys."""
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
_ASKED = {
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
_TRIES = 12
_AHEAD = 16
_TESTS = 4
"""Test tasks of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One task before its game is there."""

    split: str
    family: str
    level: int
    number: int

    @property
    def id(self) -> str:
        return f"{self.split}-{self.family}-{self.level}-{self.number}"

    def order(self, attempt: int) -> Order:
        """A seed for each split, so that no game of one is a game of another."""
        drawn = hashlib.sha256(f"{self.id}-{attempt}".encode()).digest()
        return Order(challenge=self.family, settings=tuple(self._settings().items()), seed=int.from_bytes(drawn[:3]))

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
    """`count` tasks for each family and level, numbered from `first`; there is no end to the numbers.

    Splits are ``train``, ``seeds``, ``foods`` (cooking only) and ``sizes`` (level 6). Games that are not in the cache
    are made by TextWorld, in `sandbox` or in bubblewrap. Raises ConfigError for a split, family or level there is not.
    """
    kinds = list(_kinds(split, families, levels, count, first))
    made = _made(kinds, sandbox)
    return (_task(kind, made[kind]) for kind in kinds)


def make_suite(sandbox: Sandbox | None = None) -> Suite:
    """The test splits."""
    kinds = list(_suite_kinds())
    made = _made(kinds, sandbox)
    tasks = tuple(_task(kind, made[kind]) for kind in kinds)
    return Suite(name="textworld", version=VERSION, tasks=tasks, source="TextWorld 1.7.0")


def prepare(sandbox: Sandbox | None = None) -> None:
    """Installs TextWorld, which makes games beyond the suite's, too, and makes the suite's. Raises UsageError."""
    install_textworld()
    make_suite(sandbox)


def suite_is_made() -> bool:
    """True where nothing is left to fetch or to compute."""
    return is_installed() and all((games_folder() / f"{kind.order(0).key}.json").is_file() for kind in _suite_kinds())


def _suite_kinds() -> Iterator[Kind]:
    for split in SPLITS:
        yield from _kinds(split, None, None, _TESTS, 0)


def _kinds(
    split: str, families: Sequence[str] | None, levels: Sequence[int] | None, count: int, first: int
) -> Iterator[Kind]:
    if split not in ("train", *SPLITS):
        raise ConfigError(f"textworld: no split '{split}'; have train, {', '.join(SPLITS)}")
    if unknown := [name for name in families or () if name not in FAMILIES]:
        raise ConfigError(f"textworld: no family '{unknown[0]}'; have {', '.join(FAMILIES)}")
    have = LARGER if split == "sizes" else LEVELS
    if strange := [level for level in levels or () if level not in (*LEVELS, *LARGER)]:
        raise ConfigError(f"textworld: no level {strange[0]}; have {', '.join(map(str, LEVELS))}")
    for number in range(first, first + count):
        for family in families or FAMILIES:
            if split == "foods" and family != "cooking":
                continue
            for level in [level for level in levels or have if level in have] or have:
                yield Kind(split=split, family=family, level=level, number=number)


def _made(kinds: Sequence[Kind], sandbox: Sandbox | None) -> dict[Kind, Json]:
    """A game for each. Of a kind whose seed gives none, or none that is won in time, another seed."""
    found: dict[Kind, Json] = {}
    for attempt in range(_TRIES):
        left = [kind for kind in kinds if kind not in found]
        ahead = functools.partial(_ahead, kinds if attempt == 0 else ())
        games = make_games([kind.order(attempt) for kind in left], sandbox, ahead)
        for kind, game in zip(left, games, strict=True):
            if game is not None and len(game["gold"]) < STEPS[kind.level]:
                found[kind] = game
    if missing := [kind.id for kind in kinds if kind not in found]:
        raise RuntimeError(f"textworld: no game for {missing[0]} in {_TRIES} tries")
    return found


def _ahead(kinds: Sequence[Kind]) -> list[Order]:
    """Of the tasks to come: whoever practises, or draws tests one by one, wants them soon."""
    soon = [kind for kind in kinds if kind.split == "train" or len(kinds) == 1]
    starts = {replace(kind, number=kind.number // _AHEAD * _AHEAD) for kind in soon}
    return [replace(kind, number=kind.number + more).order(0) for kind in starts for more in range(_AHEAD)]


def _task(kind: Kind, made: Json) -> Task:
    game, calls, necessary = made["game"], made["gold"], made["last_necessary"]
    rng = random.Random(kind.id)
    asked = rng.choice(_ASKED[kind.family]).format(**_slots(game, kind.family))
    return Task(
        id=kind.id,
        prompts=(f"{asked} {ANSWER}\n{TextWorld(game).look()}",),
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
        withheld=(_ALL - set(TOOLS[kind.family]),),
        limits=EpisodeLimits(steps=STEPS[kind.level]),
        split="train" if kind.split == "train" else "test",
        tags=(kind.family, f"level {kind.level}", f"split {kind.split}"),
    )


def _slots(game: Json, family: str) -> dict[str, str]:
    """What the wording names: of a treasure hunt what to take and what not to."""
    if family != "treasure":
        return {}
    names = {entity: name for entity, (name, _) in game["names"].items()}
    (_, win, fail), *_ = game["quests"]
    return {
        what: next(names[f[1]] for f in event if f[0] == "in")
        for what, (event, *_) in (("wanted", win), ("wrong", fail))
    }
