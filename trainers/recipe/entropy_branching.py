"""The rules by which ARPO and AEPO fork an episode: how much surer or less sure the policy is after a tool's result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gymcp.agents.runner.trees.controller import GO_ON, Branch, Choice, Played, Start, TreeBudget
from gymcp.errors import ConfigError
from gymcp.seeds import derive_seed
from gymcp.types import Step, Task

ENTROPY_TOKENS = 20
"""First tokens of an answer over which the authors sum its entropy."""
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


def branch_probability(
    entropy: float, initial: float, *, base: float = 0.5, weight: float = 0.2, in_a_row: int = 0, penalty: float = 0.0
) -> float:
    """Probability in [0, 1] of forking after a tool's result: base + weight (entropy - initial), and less after
    `in_a_row` forks one directly after the other.

    `entropy` is measured after the result, `initial` at the start of the episode (`measure_top_entropy`). The authors
    draw a number u from 0 to 1 and fork if (u + weight (entropy - initial)) f is at least 1 - base, with the factor
    f = 1 - penalty in_a_row, at least 0. So the probability is 1 - (1 - base) / f + weight (entropy - initial).

    Source: ARPO, vllm_rollout_with_tools.py; the paper forks two ways. The penalty: AEPO, 0.05, read in two
    repositories that have its rollouts.
    """
    factor = 1.0 - penalty * in_a_row
    if factor <= 0.0:
        return 0.0
    return min(max(1.0 - (1.0 - base) / factor + weight * (entropy - initial), 0.0), 1.0)


def count_first_episodes(first: float, later: Sequence[float], episodes: int, *, sensitivity: float = 0.5) -> int:
    """First episodes among so many of a task; the others branch off them.

    k sigmoid(sensitivity (H - mean H_t)), rounded down, plus 1, from 2 to k: the less sure the policy is of its first
    answer (entropy `first`) than of its answers to results (`later`), the more episodes begin anew. Without an answer
    to a result half of them, plus 1.

    Source: AEPO, arXiv:2510.14545, whose formula a review of the paper quotes; sensitivity and rounding from the
    rollouts in two repositories. There it may be 1; here the episode that is measured does not branch.
    """
    gap = first - math.fsum(later) / len(later) if later else 0.0
    share = 1.0 / (1.0 + math.exp(-sensitivity * gap))
    return max(min(int(episodes * share) + 1, episodes), min(2, episodes))


def measure_answer(step: Step, *, vocabulary: int, tokens: int) -> float | None:
    """Sum of -log p over the first `tokens` sampled tokens of a step, divided by log `vocabulary`; None without tokens.

    Its expectation is the entropy of the distributions that they were sampled from.
    """
    if step.sampled is None or not step.sampled.logprobs:
        return None
    return math.fsum(-value for value in step.sampled.logprobs[:tokens]) / math.log(vocabulary)


def answers_result(step: Step) -> bool:
    """True if the step answers the result of a call, and not only a message of the user."""
    return any(message.role == "tool" for message in step.observation.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchByEntropy:
    """A controller that draws a step again, in other branches, if the policy was unsure of its answer to a result.

    The more entropy the first tokens after a tool's result have, beside those of the episode's first answer, the
    likelier is a branch (`branch_probability`). It begins before the answer: all branches read the same result, and
    draw their answers anew. Answers to the user alone do not branch. The answer that begins a branch is not asked about
    again. The entropy is estimated by the drawn tokens, as the sum of their -log p, whose expectation it is: engines
    record no other token's probability. The lot is drawn from the episode's seed and the number of the step.

    With a penalty (AEPO) a branch is the less likely the more steps of the path directly before have branched.

    Source: ARPO, arXiv:2507.19849. There a task's episodes have one budget, and what no branch used is spent on
    episodes from the start; here each tree has a budget of its own. In AEPO's code the branches in a row are those of
    all episodes of the task, which are played in lock step; here they are those of the path.
    """

    vocabulary: int
    """Number of tokens that the policy knows; the entropy is measured in its logarithm."""
    ways: int = 2
    depth: int = 16
    """Branchings on a path at most."""
    base: float = 0.5
    weight: float = 0.2
    tokens: int = ENTROPY_TOKENS
    """First tokens of an answer over which its entropy is summed."""
    penalty: float = 0.0
    """Part of the lot that each branching directly before takes away."""

    def plan(self, tasks: Sequence[Task], budget: TreeBudget) -> tuple[Start, ...]:
        """As many trees of every task as the run has trials."""
        return tuple(Start(task=task.id, trees=budget.trials) for task in tasks)

    def after(self, played: Played) -> Choice:
        """Branch before the step just played, with a probability that depends on its entropy; else go on."""
        return self.at_end(played)

    def at_end(self, played: Played) -> Choice:
        """Decide as `after` does about the step that ended the episode, such as a final answer."""
        now, initial = self._measure(played.step), self._measure(played.first)
        if now is None or initial is None or played.number == 1 or not answers_result(played.step):
            return GO_ON
        if played.depth >= self.depth:
            return GO_ON
        if played.depth and played.number == played.shared + 1:
            return GO_ON
        probability = branch_probability(
            now,
            initial,
            base=self.base,
            weight=self.weight,
            in_a_row=count_in_a_row(played.points, before=played.number - 1),
            penalty=self.penalty,
        )
        lot = derive_seed("entropy", played.seed, played.number) / SEED_RANGE
        return Branch(self.ways, before=True) if lot < probability else GO_ON

    def _measure(self, step: Step) -> float | None:
        return measure_answer(step, vocabulary=self.vocabulary, tokens=self.tokens)


def count_in_a_row(points: Sequence[int], *, before: int) -> int:
    """Number of branching points directly before the point `before`, one at each step."""
    known, count = set(points), 0
    while before - 1 - count in known:
        count += 1
    return count
