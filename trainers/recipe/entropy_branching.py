"""The rule by which ARPO forks an episode: how much surer or less sure the policy is after a tool's result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gymcp.agents.runner.trees.controller import GO_ON, Branch, Choice, Played, Start, TreeBudget
from gymcp.errors import ConfigError
from gymcp.seeds import derive_seed
from gymcp.types import Step, Task

SEED_RANGE = 2**31
"""Number of seeds that `derive_seed` gives."""


def measure_top_entropy(logprobs: Sequence[float], *, vocabulary: int) -> float:
    """Sum of -p log p over the most probable tokens of some positions, divided by log `vocabulary`.

    `logprobs`: log-probabilities (nats), the positions one after the other. The authors take the 10 best tokens of each
    of the first 20 positions after a result. It is a sum over positions, not a mean, so it is compared with one of as
    many positions.

    Source: ARPO, vllm_rollout_with_tools.py.
    """
    if vocabulary < 2 or any(value > 0 for value in logprobs):
        raise ConfigError("arpo: the entropy needs log-probabilities of at most 0, and a vocabulary of 2 or more")
    return math.fsum(-math.exp(value) * value for value in logprobs if value > -math.inf) / math.log(vocabulary)


def branch_probability(entropy: float, initial: float, *, base: float = 0.5, weight: float = 0.2) -> float:
    """Probability in [0, 1] of forking after a tool's result: base + weight (entropy - initial).

    `entropy` is measured after the result, `initial` at the start of the episode (`measure_top_entropy`).

    Source: ARPO, vllm_rollout_with_tools.py; the paper forks two ways.
    """
    return min(max(base + weight * (entropy - initial), 0.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchByEntropy:
    """A controller that draws a step again, in other branches, if the policy was unsure of its answer to a result.

    The more entropy the first tokens after a tool's result have, beside those of the episode's first answer, the
    likelier is a branch (`branch_probability`). It begins before the answer: all branches read the same result, and
    draw their answers anew. The answer that begins a branch is not asked about again. The entropy is estimated by the
    drawn tokens, as the sum of their -log p, whose expectation it is: engines record no other token's probability.
    The lot is drawn from the episode's seed and the number of the step.

    Source: ARPO, arXiv:2507.19849. There a task's episodes have one budget, and what no branch used is spent on
    episodes from the start; here each tree has a budget of its own.
    """

    vocabulary: int
    """Number of tokens that the policy knows; the entropy is measured in its logarithm."""
    ways: int = 2
    depth: int = 16
    """Branchings on a path at most."""
    base: float = 0.5
    weight: float = 0.2
    tokens: int = 20
    """First tokens of an answer over which its entropy is summed."""

    def plan(self, tasks: Sequence[Task], budget: TreeBudget) -> tuple[Start, ...]:
        """As many trees of every task as the run has trials."""
        return tuple(Start(task=task.id, trees=budget.trials) for task in tasks)

    def after(self, played: Played) -> Choice:
        """Branch before the step just played, with a probability that depends on its entropy; else go on."""
        return self.at_end(played)

    def at_end(self, played: Played) -> Choice:
        """Decide as `after` does about the step that ended the episode, such as a final answer."""
        now, initial = self._measure(played.step), self._measure(played.first)
        if now is None or initial is None or played.number == 1 or played.depth >= self.depth:
            return GO_ON
        if played.depth and played.number == played.shared + 1:
            return GO_ON
        probability = branch_probability(now, initial, base=self.base, weight=self.weight)
        lot = derive_seed("entropy", played.seed, played.number) / SEED_RANGE
        return Branch(self.ways, before=True) if lot < probability else GO_ON

    def _measure(self, step: Step) -> float | None:
        if step.sampled is None or not step.sampled.logprobs:
            return None
        return math.fsum(-value for value in step.sampled.logprobs[: self.tokens]) / math.log(self.vocabulary)
