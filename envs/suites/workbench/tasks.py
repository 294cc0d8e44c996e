"""Tasks: drafts with a wording, a world and a target. The same arguments always make the same tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from gymcp.envs.suites.workbench import (
    multi_conditional,
    multi_parallel,
    multi_sequential,
    single_conditional,
    single_parallel,
    single_sequential,
)
from gymcp.envs.suites.workbench.draft import Draft, Family
from gymcp.envs.suites.workbench.office import REPO, ROOT, TOOLS, Office
from gymcp.envs.suites.workbench.wordings import HEAD, fill_template, wordings
from gymcp.errors import ConfigError
from gymcp.mcp_servers.native.runtime import ToolError
from gymcp.types import GoldTurn, Json, Suite, Task, ToolCall, ToolOffer

FAMILIES: Mapping[str, Family] = {
    **single_sequential.FAMILIES,
    **single_parallel.FAMILIES,
    **single_conditional.FAMILIES,
    **multi_sequential.FAMILIES,
    **multi_parallel.FAMILIES,
    **multi_conditional.FAMILIES,
}
SPLITS = ("train", "test")
LEVELS = (1, 2, 3)
"""Each level has more to do in more steps, a larger office, and more servers that are not needed."""
PEOPLE = {1: 6, 2: 9, 3: 12}
"""People in an office, by level."""
ALWAYS_PRESENT: Mapping[int, tuple[str, ...]] = {1: (), 2: ("calendar", "desk"), 3: ("git", "time", "calendar", "desk")}
"""Servers that a task has whether it needs them or not, by level."""
VERSION = "1"
TASKS_PER_KIND = 3
"""Tasks in the suite for each family and level."""


def make_tasks(
    split: str,
    *,
    families: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    count: int = TASKS_PER_KIND,
    first: int = 0,
) -> Iterator[Task]:
    """`count` tasks for each family and level, numbered from `first`; there is no last number.

    A category such as ``multi-parallel`` stands for all its families. Splits are ``train`` and ``test``, which share no
    office and no frame. Raises ConfigError for an unknown split, family, category or level.
    """
    if split not in SPLITS:
        raise ConfigError(f"workbench: no split '{split}'; have {', '.join(SPLITS)}")
    chosen = [name for family in families or FAMILIES for name in _families_of(family)]
    if unknown := [level for level in levels or () if level not in LEVELS]:
        raise ConfigError(f"workbench: no level {unknown[0]}; have {', '.join(map(str, LEVELS))}")
    for number in range(first, first + count):
        for family in chosen:
            for level in levels or LEVELS:
                yield task_and_draft(split, family, level, number)[0]


def categories() -> dict[str, list[str]]:
    """Families by category, which is a server scope and a call structure."""
    by_category: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        by_category.setdefault(f"{family.scope}-{family.structure}", []).append(name)
    return by_category


def make_suite() -> Suite:
    """The suite of the test tasks."""
    return Suite(name="workbench", version=VERSION, tasks=tuple(make_tasks("test")), source="generated")


def _families_of(name: str) -> list[str]:
    """The family of that name, or all families of the category of that name."""
    if name in FAMILIES:
        return [name]
    by_category = categories()
    if name not in by_category:
        raise ConfigError(
            f"workbench: no family or category '{name}'; have the categories {', '.join(by_category)} and the families "
            f"{', '.join(FAMILIES)}"
        )
    return by_category[name]


def task_and_draft(split: str, name: str, level: int, number: int) -> tuple[Task, Draft]:
    """A task, and the draft from which it was made."""
    family = FAMILIES[name]
    rng = random.Random(f"{split}-{name}-{level}-{number}")
    office = Office(rng, PEOPLE[level])
    draft = family.make(office, rng, level)
    request = fill_template(rng.choice(wordings(family.bodies, held_out=split == "test")), draft.slots)
    if draft.answer:
        request += f" Reply with {draft.reply} and nothing else."
    servers = [server for server in TOOLS if server in draft.servers or server in ALWAYS_PRESENT[level]]
    target: dict[str, Json] = {"servers": office.after(draft.calls, servers)}
    if draft.answer:
        target["answer"] = draft.answer
    category = f"{family.scope}-{family.structure}"
    task = Task(
        id=f"{'train-' if split == 'train' else ''}{category}-{name}-{level}-{number}",
        prompts=(f"{HEAD.format(root=ROOT, repo=REPO)}\n{request}",),
        initial_state=office.initial_state(servers),
        target=target,
        gold=(GoldTurn(calls=as_calls(draft), final_text=draft.answer or "Done."),),
        last_necessary=last_necessary(office, draft, servers),
        offer=ToolOffer(servers=frozenset(servers)),
        split=split,
        tags=(
            category,
            f"level {level}",
            f"scope {family.scope}",
            f"structure {family.structure}",
            *(f"server {server}" for server in TOOLS if server in draft.servers),
        ),
    )
    return task, draft


def as_calls(draft: Draft) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(id=f"call_{number}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(draft.calls, 1)
    )


def last_necessary(office: Office, draft: Draft, servers: Sequence[str]) -> tuple[int, int] | None:
    """The place of the last call without which the world ends up different, or a later call fails."""
    calls = draft.calls
    after_all = office.after(calls, servers)
    for number in reversed(range(len(calls))):
        try:
            without = office.after((*calls[:number], *calls[number + 1 :]), servers)
        except (LookupError, ValueError, ToolError):  # a later call needs it
            return (0, number)
        if without != after_all:
            return (0, number)
    return None
