"""Tasks: drafts with a wording, a handbook and a target. The same arguments always make the same tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache

from gymcp.envs.suites.backoffice.families import FAMILIES, HELD_OUT_FAMILIES, Draft
from gymcp.envs.suites.backoffice.tempting_requests import TEMPTING_FAMILIES
from gymcp.envs.suites.backoffice.wordings import wordings
from gymcp.envs.suites.backoffice.world import NotApplicable, World, as_calls
from gymcp.errors import ConfigError
from gymcp.mcp_servers.programs.backoffice.company import POLICIES, TODAY, handbook
from gymcp.types import GoldTurn, Suite, Task

SPLITS = ("seeds", "wordings", "values", "families")
"""Test splits, named after what no training task has: these companies, phrases, people and cities, or families."""
LEVELS = (1, 2, 3, 4, 5)
HANDBOOK = {1: 0, 2: 0, 3: 3, 4: 5, 5: 8}
"""Number of rules in the request, by level; the rules on which the answer depends are always among them."""
ANSWERS = "Reply with the bare value, or done, or refused: and why."
VERSION = "1"
_FIRST_SEED = {"train": 0, "seeds": 10**9, "wordings": 2 * 10**9, "values": 3 * 10**9, "families": 4 * 10**9}
"""Seed of the first company, by split: far enough apart that training tasks never reach a test split's companies."""
_KNOWN = {**FAMILIES, **HELD_OUT_FAMILIES, **TEMPTING_FAMILIES}
_MAX_COMPANIES_TRIED = 40
_TASKS_PER_COMPANY = 10


def make_tasks(
    split: str,
    *,
    families: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    count: int = 4,
    first: int = 0,
) -> Iterator[Task]:
    """`count` tasks for each family and level, numbered from `first`; there is no last number.

    Splits are ``train``, ``seeds``, ``wordings``, ``values`` and ``families``. ``train`` draws companies, wordings and
    values that no test split has, in the families for training. ``families`` takes only held-out families from those
    named, the other splits only the rest. Raises ConfigError for an unknown split, family or level, and for a held-out
    family in ``train``.
    """
    if split not in _FIRST_SEED:
        raise ConfigError(f"backoffice: no split '{split}'; have {', '.join(_FIRST_SEED)}")
    if unknown := [name for name in families or () if name not in _KNOWN]:
        raise ConfigError(f"backoffice: no family '{unknown[0]}'; have {', '.join(_KNOWN)}")
    if strange := [level for level in levels or () if level not in LEVELS]:
        raise ConfigError(f"backoffice: no level {strange[0]}; have {', '.join(map(str, LEVELS))}")
    if split == "train" and (held_out := [name for name in families or () if name in HELD_OUT_FAMILIES]):
        raise ConfigError(f"backoffice: family '{held_out[0]}' is for the split 'families'; train on others")
    named = families or tuple(HELD_OUT_FAMILIES if split == "families" else FAMILIES)
    chosen = [name for name in named if (name in HELD_OUT_FAMILIES) == (split == "families")]
    for number in range(first, first + count):
        for family in chosen:
            for level in levels or LEVELS:
                yield task_and_draft(split, family, level, number)[0]


def make_suite() -> Suite:
    """The test splits."""
    tasks = [task for split in SPLITS for task in make_tasks(split, count=8 if split == "families" else 4)]
    return Suite(name="backoffice", version=VERSION, tasks=tuple(tasks), source="generated")


def task_and_draft(split: str, family: str, level: int, number: int) -> tuple[Task, Draft]:
    """A task, and the draft from which it was made."""
    rng = random.Random(f"{split}-{family}-{level}-{number}")
    make = _KNOWN[family]
    company = _FIRST_SEED[split] + number // _TASKS_PER_COMPANY * 1000
    for attempt in range(_MAX_COMPANIES_TRIED):
        world = _world(company + attempt, split == "values")
        try:
            draft = make(world, rng, level)
        except NotApplicable:
            continue
        return _to_task(split, family, level, number, world, draft, rng), draft
    raise RuntimeError(f"backoffice: no company fits a task of {family}, level {level}")


def _to_task(split: str, family: str, level: int, number: int, world: World, draft: Draft, rng: random.Random) -> Task:
    request = rng.choice(wordings(family, level, held_out=split == "wordings")).format(**draft.slots)
    rules = _rules(draft, HANDBOOK[level], rng)
    book = f"Handbook: {' '.join(handbook(world.tables, rules))}\n" if rules else ""
    state = world.after(draft.calls)
    return Task(
        id=f"{split}-{family}-{level}-{number}",
        prompts=(f"Today is day {TODAY}. {ANSWERS}\n{book}{request}",),
        initial_state={"seed": world.seed},
        target={"state": {"changes": state}, "answer": draft.answer},
        gold=(GoldTurn(calls=as_calls(draft.calls), final_text=draft.answer),),
        last_necessary=_last_necessary(world, draft, state),
        split="train" if split == "train" else "test",
        tags=(family, f"level {level}", f"split {split}"),
    )


def _rules(draft: Draft, size: int, rng: random.Random) -> list[str]:
    others = [topic for topic in POLICIES if topic not in draft.rules]
    rules = [*draft.rules, *rng.sample(others, min(max(size - len(draft.rules), 0), len(others)))]
    rng.shuffle(rules)
    return rules


def _last_necessary(world: World, draft: Draft, state: object) -> tuple[int, int] | None:
    """The place of the last call without which the books end up different; reading leaves them as they are."""
    for number in reversed(range(len(draft.calls))):
        if world.after((*draft.calls[:number], *draft.calls[number + 1 :])) != state:
            return (0, number)
    return None


@lru_cache(maxsize=64)
def _world(seed: int, held_out: bool) -> World:
    return World(seed, held_out=held_out)
