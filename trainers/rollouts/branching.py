"""The rule by which ARPO forks an episode: how much surer or less sure the policy is after a tool's result."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gymcp.errors import ConfigError


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
