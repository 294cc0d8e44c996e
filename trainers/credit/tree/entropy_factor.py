"""AEPO's factor on the advantage of each token: stronger at tokens that the policy was unsure of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.credit.signals.model_values import TOKEN_ENTROPY
from gymcp.trainers.credit.signals.token_credit import TokenCredit, count_tokens
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyFactor:
    """Each token's advantage is that of its step, times 1 + `coefficient` times the deviation of the token's entropy.

    The deviation is from the mean over all drawn tokens of the batch, in standard deviations. A batch of bare columns
    has one token a step, whose entropy is its column. `by_leaves`: a token counts once for each leaf that shares it, in
    mean and deviation, and in its weight, which is divided by the mean weight of the batch's tokens.

    Source: AEPO, read in a fork of the authors' repository.
    """

    coefficient: float = 0.2
    by_leaves: bool = False

    def __call__(self, batch: StepBatch, rewards: Floats) -> TokenCredit:
        """[S] advantages -> [K]. Raises ConfigError if nothing is known of the tokens' entropies."""
        columns = batch.columns if batch.token_counts is None else batch.token_columns
        if TOKEN_ENTROPY not in columns:
            raise ConfigError(f"credit: the preset needs {TOKEN_ENTROPY} of every token, which nothing has computed")
        counts = count_tokens(batch)
        spread, leaves = np.repeat(rewards, counts), None
        if self.by_leaves:
            leaves = np.repeat(batch.column("leaves"), counts)
        found = scale_by_entropy(spread, columns[TOKEN_ENTROPY], coefficient=self.coefficient, leaves=leaves)
        return TokenCredit(advantages=found, returns=found)


def scale_by_entropy(
    advantages: Floats, entropy: Floats, *, coefficient: float = 0.2, leaves: Floats | None = None
) -> Floats:
    """[K], [K] -> [K]: A (1 + c z), z: entropy less its mean, over its deviation (divided by K - 1).

    `leaves` [K]: how many rows repeat each token; the result is that of all rows, on tokens that are there once. Fewer
    than two tokens have no deviation, and keep their advantages.
    """
    repeats = np.ones(len(entropy)) if leaves is None else leaves
    rows = float(repeats.sum())
    weight = repeats * len(entropy) / max(rows, 1.0)
    if rows < 2:
        return advantages
    away = entropy - (repeats * entropy).sum() / rows
    deviation = away / (np.sqrt((repeats * away**2).sum() / (rows - 1)) + 1e-8)
    return np.asarray(weight * advantages * (1.0 + coefficient * deviation), float)
