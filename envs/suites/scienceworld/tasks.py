"""ScienceWorld's 30 kinds of tasks with their published variations as tasks. The same arguments make the same tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gymcp.envs.suites.scienceworld.installation import SCIENCEWORLD, install_scienceworld, is_installed
from gymcp.envs.suites.scienceworld.records import (
    Variation,
    are_made,
    make_records,
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
STEPS = 100
"""Upstream's own limit on the steps of an episode; a task whose gold is longer than half of it has twice its gold."""
ANSWER = "Say done when you have finished."
_TOPIC_OF = {task: topic for topic, tasks in TOPICS.items() for task in tasks}
_TEST_TASKS = 1
"""Test variations of each kind of task that are in the suite."""


def make_tasks(
    split: str,
    *,
    families: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    count: int = 4,
    first: int = 0,
    sandbox: Sandbox | None = None,
) -> Iterator[Task]:
    """`count` tasks for each family, numbered from `first`: variations of upstream's split, in its order.

    After the last number, the first one comes again. In place of a variation that upstream's own gold does not solve
    comes the next. A task's record is made when it is first asked for, in `sandbox` or in bubblewrap. Raises
    ConfigError for an unknown split or family, and for levels, of which there are none.
    """
    slots = list(_list_candidates(split, families, levels, count, first, sandbox))
    make_records([candidates[0] for candidates in slots], sandbox)
    return (_to_task(split, *_take_solved(candidates, sandbox)) for candidates in slots)


def make_suite(sandbox: Sandbox | None = None) -> Suite:
    """The first test variations of each kind of task."""
    tasks = tuple(make_tasks("test", count=_TEST_TASKS, sandbox=sandbox))
    source = f"{SCIENCEWORLD.name}=={SCIENCEWORLD.version}"
    return Suite(name="scienceworld", version=VERSION, tasks=tasks, source=source)


def prepare(sandbox: Sandbox | None = None) -> None:
    """Fetch the simulator, and play the gold of the suite's tasks. Raises UsageError."""
    install_scienceworld()
    make_suite(sandbox)


def suite_is_made() -> bool:
    """True if nothing is left to fetch or to compute."""
    return (
        is_installed()
        and splits_are_made()
        and are_made([each[0] for each in _list_candidates("test", None, None, _TEST_TASKS, 0, None)])
    )


def _list_candidates(
    split: str,
    families: Sequence[str] | None,
    levels: Sequence[int] | None,
    count: int,
    first: int,
    sandbox: Sandbox | None,
) -> Iterator[list[Variation]]:
    """For each task: the variation of its number, and those that take its place if it cannot be solved."""
    if split not in SPLITS:
        raise ConfigError(f"scienceworld: no split '{split}'; have {', '.join(SPLITS)}")
    if unknown := [name for name in families or () if name not in FAMILIES]:
        raise ConfigError(f"scienceworld: no family '{unknown[0]}'; have {', '.join(FAMILIES)}")
    if levels:
        raise ConfigError("scienceworld: has no levels; choose families instead")
    splits = read_splits(sandbox)
    chosen = families or FAMILIES
    for number in range(first, first + count):
        for name in chosen:
            variations = splits[name][split]
            start = number % len(variations)
            yield [(name, each) for each in (*variations[start:], *variations[:start])]


def _take_solved(candidates: Sequence[Variation], sandbox: Sandbox | None) -> tuple[Variation, Json]:
    """The first variation that its gold solves, with its record. Raises ConfigError if there is none."""
    for variation in candidates:
        (record,) = make_records([variation], sandbox)
        if record["solved"]:
            return variation, record
    raise ConfigError(f"scienceworld: upstream's gold solves no variation of {candidates[0][0]} in this split")


def _to_task(split: str, variation: Variation, record: Json) -> Task:
    name, number = variation
    gold: list[str] = record["gold"]
    calls = (
        ToolCall(id=f"call_{place}", name="act", arguments={"action": action}) for place, action in enumerate(gold, 1)
    )
    return Task(
        id=f"{name}-{number}",
        prompts=(f"{_describe(record)} {ANSWER}\n{record['start'].strip()}",),
        initial_state={"task": name, "variation": number},
        target={"score": FULL_SCORE},
        gold=(GoldTurn(calls=tuple(calls), final_text="done"),),
        last_necessary=(0, len(gold) - 1),  # the gold ends with the first action after which all goals are reached
        limits=EpisodeLimits(steps=max(STEPS, 2 * len(gold))),
        split=split,
        tags=(_TOPIC_OF[name], name, f"split {split}"),
    )


def _describe(record: Json) -> str:
    text: str = record["description"]
    return " ".join(text.removeprefix("Task Description:").split())
