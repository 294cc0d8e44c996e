"""Tokens that the policy was sure of: segment SPO does not learn them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.signals.token_credit import TokenCredit, count_drawn, count_tokens
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats

PROBABILITY = "probability"
"""Column of tokens: the probability with which each was drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenProbabilities:
    """Column of tokens ``probability``, from the log-probabilities in the records; a batch without records keeps its
    own."""

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        if not batch.sources:
            return batch, trackers
        drawn = [
            value
            for record in batch.sources
            for step in record.steps
            if step.sampled is not None
            for value in step.sampled.logprobs
        ]
        return batch.with_tokens(count_drawn(batch), **{PROBABILITY: np.exp(np.array(drawn, float))}), trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOutSure:
    """The advantage of its step on each token whose probability is below `threshold`, and 0 on the others.

    Source: SPO, ppo_trainer (probability mask).
    """

    threshold: float

    def __call__(self, batch: StepBatch, rewards: Floats) -> TokenCredit:
        """[S] advantages -> [K]. Raises ConfigError if nothing is known of the tokens' probabilities."""
        columns = batch.columns if batch.token_counts is None else batch.token_columns
        if PROBABILITY not in columns:
            raise ConfigError(f"credit: the preset needs {PROBABILITY} of every token, which nothing has computed")
        spread = np.repeat(rewards, count_tokens(batch))
        found = np.where(columns[PROBABILITY] < self.threshold, spread, 0.0)
        return TokenCredit(advantages=found, returns=found)
