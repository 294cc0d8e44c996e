"""Recall@k: the share of the tools that a task needs among the first k that its prompt retrieves, by gold calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gymcp.envs.wrappers.bm25 import rank_tools
from gymcp.evaluators.statistics import Interval, mean_ci95
from gymcp.types import Task, Tool

KS = (1, 5, 10, 20, 50)
"""Numbers of tools for which recall is reported by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallAt:
    k: int
    recall: float
    """Mean over tasks of the share of needed tools among the first k. If k is below the number of needed tools, it is
    below 1 for every ranking."""
    ci95: Interval | None
    best: float
    """Recall of the best possible ranking."""
    complete: float
    """Share of the tasks whose needed tools are all among the first k."""
    tasks: int


def measure_recall(
    tasks: Sequence[Task], tools: Sequence[Tool], servers: Mapping[str, str], ks: Sequence[int] = KS
) -> list[RecallAt]:
    """Recall for each k, over the tasks with gold calls; empty if there are none. Each user turn's prompt is one query.

    `servers`: tool name -> name of its server.
    """
    ranks = {task.id: turns for task in tasks if (turns := list(_rank_needed(task, tools, servers)))}
    if not ranks:
        return []
    rows = []
    for k in ks:
        shares = {task: _mean([_share(turn, k) for turn in turns]) for task, turns in ranks.items()}
        rows.append(
            RecallAt(
                k=k,
                recall=_mean(list(shares.values())),
                ci95=mean_ci95({task: [share] for task, share in shares.items()}),
                best=_mean([_mean([min(1.0, k / len(turn)) for turn in turns]) for turns in ranks.values()]),
                complete=_mean([float(share == 1.0) for share in shares.values()]),
                tasks=len(shares),
            )
        )
    return rows


def _rank_needed(task: Task, tools: Sequence[Tool], servers: Mapping[str, str]) -> Iterator[list[float]]:
    """Ranks of the tools that each user turn with calls needs, from 1; infinity for a tool that is not found."""
    for prompt, turn in zip(task.prompts, task.gold, strict=False):
        needed = dict.fromkeys(call.name for call in turn.calls)
        if needed:
            ranks = {tool.name: rank for rank, tool in enumerate(rank_tools(tools, prompt, servers), start=1)}
            yield [ranks.get(name, math.inf) for name in needed]


def _share(ranks: Sequence[float], k: int) -> float:
    return sum(rank <= k for rank in ranks) / len(ranks)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
