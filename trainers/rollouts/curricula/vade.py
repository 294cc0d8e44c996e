"""VADE: of the tasks that are repeated, those are played of which a group is expected to teach most."""

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
from gymcp.types import Task

UNPLAYED_MEMORY = 0.999
"""Weight that a task's earlier episodes keep in an iteration without a further group of it, as in the paper's figure;
there the weight with one, `VadeCurriculum.memory`, is 0.2."""


def information_gain(rate: float) -> float:
    """p (1 - p)^2: expected worth of a group of a task with success rate p. It is largest at p = 1/3."""
    return rate * (1.0 - rate) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class VadeCurriculum:
    """Draws a success rate of each task from its Beta distribution (Thompson sampling), and plays the tasks with the
    largest `information_gain`.

    The distribution of a task has its solved and failed episodes, plus one each, as parameters. Earlier episodes count
    less, quickly while the task is played, slowly while it is not: what is known of it goes out of date with the
    policy.

    Source: arXiv:2511.18902 (VADE), read on the authors' project page and in its figure.
    """

    tasks: Sequence[Task]
    seed: int
    trials: int
    """Trial numbers that are kept for a group of a task: it has so many episodes at most."""
    memory: float
    """Weight of the earlier episodes of a task when a further group of it was played."""

    def plan(self, state: CurriculumState, count: int) -> tuple[list[PlannedGroup], CurriculumState]:
        """Groups of the `count` tasks with the largest gain. The draw depends on seed and state alone."""
        rng = random.Random(f"{self.seed}-vade-{state.groups}")
        tallies = [state.tally(task.id) for task in self.tasks]
        gains = [information_gain(rng.betavariate(tally.solved + 1, tally.failed + 1)) for tally in tallies]
        chosen = sorted(range(len(gains)), key=lambda place: gains[place], reverse=True)[:count]
        planned = [
            PlannedGroup(task=self.tasks[place], first_trial=tallies[place].made, kind=self.tasks[place].id)
            for place in chosen
        ]
        made = {
            self.tasks[place].id: replace(tallies[place], made=tallies[place].made + self.trials) for place in chosen
        }
        return planned, replace(state, groups=state.groups + len(planned), kinds={**state.kinds, **made})

    def observe(self, state: CurriculumState, results: Sequence[GroupResult]) -> CurriculumState:
        """The state with the groups in the tallies of their tasks, and with a little less in those of all others."""
        played = {result.kind for result in results if result.scores}
        kinds = {
            kind: tally
            if kind in played
            else replace(tally, solved=UNPLAYED_MEMORY * tally.solved, failed=UNPLAYED_MEMORY * tally.failed)
            for kind, tally in state.kinds.items()
        }
        for result in results:
            kinds[result.kind] = count_result(kinds[result.kind], result.scores, self.memory)
        return replace(state, kinds=kinds)
