"""A controller by which no failed call stays in an episode: the step is drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gymcp.agents.runner.trees.controller import GO_ON, Choice, Played, Retry, Start, TreeBudget
from gymcp.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryErrors:
    """A controller that undoes a step with a failed call and has it drawn again, up to `retries` times.

    The record has the first answer without a failed call, or the last one. Nothing branches.

    Source: CLEANER. There the policy sees the error before it repairs the call, and the repaired call takes the failed
    one's place in the text, with log-probabilities of another context. Here it never sees the error, and every token
    stays in the context in which it was drawn.
    """

    undoes: ClassVar[bool] = True
    retries: int = 3

    def plan(self, tasks: Sequence[Task], budget: TreeBudget) -> tuple[Start, ...]:
        """As many episodes of every task as the run has trials."""
        return tuple(Start(task=task.id, trees=budget.trials) for task in tasks)

    def after(self, played: Played) -> Choice:
        """Another try at a step with a failed call."""
        failed = any(result.is_error for result in played.step.results)
        return Retry() if failed and played.tries <= self.retries else GO_ON
