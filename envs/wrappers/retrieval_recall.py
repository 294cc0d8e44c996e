"""How many of the tools that a task needs are among the first k that its words bring: recall@k, by gold calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gymcp.envs.wrappers.bm25 import rank_tools
from gymcp.evaluators.statistics import Interval, mean_ci95
from gymcp.types import Task, Tool

KS = (1, 5, 10, 20, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallAt:
    k: int
    recall: float
    """Mean over tasks of the share of needed tools among the first k. With k below the number needed it is below 1
    for every ranking."""
    ci95: Interval | None
    best: float
    """What the best of all rankings would have."""
    complete: float
    """Share of the tasks of which all needed tools are among the first k."""
    tasks: int


def recall_at(
    tasks: Sequence[Task], tools: Sequence[Tool], servers: Mapping[str, str], ks: Sequence[int] = KS
) -> list[RecallAt]:
    """For each k, over the tasks with gold calls; each user turn's words are searched for alone. Empty without any.

    `servers`: by tool, whose it is.
    """
    found = {task.id: places for task in tasks if (places := list(_places(task, tools, servers)))}
    if not found:
        return []
    rows = []
    for k in ks:
        shares = {task: _mean([_share(turn, k) for turn in turns]) for task, turns in found.items()}
        rows.append(
            RecallAt(
                k=k,
                recall=_mean(list(shares.values())),
                ci95=mean_ci95({task: [share] for task, share in shares.items()}),
                best=_mean([_mean([min(1.0, k / len(turn)) for turn in turns]) for turns in found.values()]),
                complete=_mean([float(share == 1.0) for share in shares.values()]),
                tasks=len(shares),
            )
        )
    return rows


def _places(task: Task, tools: Sequence[Tool], servers: Mapping[str, str]) -> Iterator[list[float]]:
    """For each user turn with calls, the place of each tool that it needs, from 1; infinity where it is not found."""
    for prompt, turn in zip(task.prompts, task.gold, strict=False):
        needed = dict.fromkeys(call.name for call in turn.calls)
        if needed:
            ranked = {tool.name: place for place, tool in enumerate(rank_tools(tools, prompt, servers), start=1)}
            yield [ranked.get(name, math.inf) for name in needed]


def _share(places: Sequence[float], k: int) -> float:
    return sum(place <= k for place in places) / len(places)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
