"""A curriculum whose groups have different numbers of episodes, as a controller allocates them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gymcp.agents.runner.trees.allocation import AllocateEpisodes
from gymcp.agents.runner.trees.controller import TreeBudget
from gymcp.trainers.rollouts.curricula.protocol import (
    Curriculum,
    CurriculumState,
    GroupResult,
    PlannedGroup,
    count_result,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedCurriculum:
    """The groups of another curriculum, with more episodes for tasks of which further ones are expected to teach more.

    The expected success rate is that of the group's kind if the curriculum tells kinds apart. Otherwise each task is a
    kind by itself: its id is the name, its tally counts episodes, and those that were planned are its next trial's
    number. A task that is planned twice at once is allocated twice.
    """

    curriculum: Curriculum
    by_task: bool
    """True if the curriculum does not tell kinds apart."""
    episodes: int
    """Episodes of a group on average."""
    fewest: int
    most: int
    memory: float
    """Weight of the earlier episodes of a task when a further group of it was played."""

    def plan(self, state: CurriculumState, count: int) -> tuple[list[PlannedGroup], CurriculumState]:
        """The curriculum's next `count` groups, each with a number of episodes. Raises ConfigError as
        `allocate_episodes`."""
        planned, state = self.curriculum.plan(state, count)
        if self.by_task:
            planned = [replace(group, kind=group.task.id) for group in planned]
        rates = {group.task.id: state.tally(group.kind).rate for group in planned}
        controller = AllocateEpisodes(rates=rates, fewest=self.fewest, most=self.most)
        starts = controller.plan([group.task for group in planned], TreeBudget(trials=self.episodes))
        groups = []
        for group, start in zip(planned, starts, strict=True):
            tally, first = state.tally(group.kind), group.first_trial
            if self.by_task:
                first = tally.made
                state = state.with_tally(group.kind, replace(tally, made=first + start.trees))
            groups.append(replace(group, first_trial=first, episodes=start.trees))
        return groups, state

    def observe(self, state: CurriculumState, results: Sequence[GroupResult]) -> CurriculumState:
        """The state with the episodes in the tallies of their kinds or tasks."""
        state = self.curriculum.observe(state, results)
        for result in results if self.by_task else ():
            state = state.with_tally(result.kind, count_result(state.tally(result.kind), result.scores, self.memory))
        return state
