"""Adaptive difficulty: more tasks of the kinds that the policy sometimes solves, few of the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gymcp.trainers.rollouts.curricula.protocol import (
    CurriculumState,
    GroupResult,
    PlannedGroup,
    count_result,
)
from gymcp.trainers.rollouts.curricula.task_kinds import TaskKinds


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierCurriculum:
    """Draws each group's kind by how near the expected success rate of the kind is to a target.

    Source: arXiv:2601.04809 (SCALER), which moves one difficulty per environment and exchanges environments; here every
    family and level has a weight of its own, so neither needs an order.
    """

    kinds: TaskKinds
    seed: int
    target: float
    """Success rate that is sought, between 0 and 1."""
    explore: float
    """Share of the groups whose kind is drawn evenly."""
    memory: float
    """Weight of the earlier episodes of a kind when a further group of it was played."""

    def plan(self, state: CurriculumState, count: int) -> tuple[list[PlannedGroup], CurriculumState]:
        """Groups of kinds that are drawn with `frontier_shares`. The draw depends on seed and state alone."""
        rates = [state.tally(kind).rate for kind in self.kinds.names]
        shares = frontier_shares(rates, target=self.target, explore=self.explore)
        rng = random.Random(f"{self.seed}-frontier-{state.groups}")
        return plan_kinds(self.kinds, state, rng.choices(self.kinds.names, shares, k=count))

    def observe(self, state: CurriculumState, results: Sequence[GroupResult]) -> CurriculumState:
        """The state with the groups in the tallies of their kinds."""
        for result in results:
            tally = count_result(state.tally(result.kind), result.scores, self.memory)
            state = state.with_tally(result.kind, tally)
        return state


def frontier_shares(rates: Sequence[float], *, target: float, explore: float) -> list[float]:
    """[K] expected success rates -> [K] shares, which add up to 1: largest at the target, and at least explore / K.

    The weight of a rate p is p^(2 target) (1 - p)^(2 - 2 target), so for a target of 1/2 it is the variance p (1 - p).
    """
    weights = [rate ** (2 * target) * (1 - rate) ** (2 - 2 * target) for rate in rates]
    total = sum(weights)
    even = 1 / len(weights)
    return [explore * even + (1 - explore) * (weight / total if total > 0 else even) for weight in weights]


def plan_kinds(
    kinds: TaskKinds, state: CurriculumState, chosen: Sequence[str]
) -> tuple[list[PlannedGroup], CurriculumState]:
    """A new task of each chosen kind, and the state after that. No task is ever planned twice."""
    planned = []
    for kind in chosen:
        tally = state.tally(kind)
        planned.append(PlannedGroup(task=kinds.make_task(kind, tally.made), kind=kind))
        state = state.with_tally(kind, replace(tally, made=tally.made + 1))
    return planned, replace(state, groups=state.groups + len(chosen))
