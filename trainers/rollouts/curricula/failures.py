"""Tasks generated from failures: a task that was not solved leads to a new one of its kind."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gymcp.trainers.rollouts.curricula.frontier import plan_kinds
from gymcp.trainers.rollouts.curricula.protocol import (
    CurriculumState,
    GroupResult,
    PlannedGroup,
    count_result,
)
from gymcp.trainers.rollouts.curricula.task_kinds import TaskKinds


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCurriculum:
    """New tasks of the kinds of failed groups first, as long as the policy solves the kind neither hardly ever nor
    nearly always; then one of each kind in turn.

    Source: arXiv:2411.02337 (WebRL), in which a language model rewrites failed tasks and a trained critic filters them.
    Here the environment's generator makes a new task of the same family and level, and the tally of the kind is the
    critic, so no model is asked.
    """

    kinds: TaskKinds
    seed: int
    low: float
    """Lowest expected success rate of a kind that failures may lead to."""
    high: float
    """Highest such rate."""
    explore: float
    """Share of the groups that are taken from all kinds in turn, whatever failed: on average over the iterations."""
    memory: float
    """As in `FrontierCurriculum`."""

    def plan(self, state: CurriculumState, count: int) -> tuple[list[PlannedGroup], CurriculumState]:
        """Groups from failures, then groups of each kind in turn.

        Failures outside of the bounds are forgotten; of those that wait, the newest are kept, twice as many as groups.
        """
        fit = [kind for kind in state.waiting if self.low <= state.tally(kind).rate <= self.high]
        draw = random.Random(f"{self.seed}-explore-{state.groups}").random()
        most = count - math.floor(self.explore * count + draw)
        chosen = fit[:most]
        in_turn = [self._kind_in_turn(state.groups + place) for place in range(len(chosen), count)]
        return plan_kinds(self.kinds, replace(state, waiting=tuple(fit[most:][-2 * count :])), [*chosen, *in_turn])

    def observe(self, state: CurriculumState, results: Sequence[GroupResult]) -> CurriculumState:
        """The state with the groups in the tallies, and with the kinds of those that were not all solved waiting."""
        for result in results:
            tally = count_result(state.tally(result.kind), result.scores, self.memory)
            state = state.with_tally(result.kind, tally)
            if any(score < 1.0 for score in result.scores):
                state = replace(state, waiting=(*state.waiting, result.kind))
        return state

    def _kind_in_turn(self, place: int) -> str:
        """The kind at a place in an endless sequence, which has every kind once in each round."""
        again, at = divmod(place, len(self.kinds.names))
        names = list(self.kinds.names)
        random.Random(f"{self.seed}-in-turn-{again}").shuffle(names)
        return names[at]
