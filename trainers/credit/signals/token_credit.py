"""Advantages of single tokens: what a backup returns, and how tokens and steps of a batch belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenCredit:
    """Advantages of drawn tokens, and what a critic should have predicted."""

    advantages: Floats
    """[K]."""
    returns: Floats
    """[K]: what the critic is fitted to."""


class Backup(Protocol):
    """A rule that makes an advantage of each token from the rewards of steps."""

    def __call__(self, batch: StepBatch, rewards: Floats) -> TokenCredit:
        """[S] rewards -> [K]. A batch of bare columns has one token a step."""
        ...


def count_drawn(batch: StepBatch) -> Ints:
    """[S]: tokens drawn in each recorded step, without those of side answers."""
    drawn = [0 if step.sampled is None else len(step.sampled.ids) for own in batch.sources for step in own.steps]
    return np.array(drawn, np.int64)


def count_tokens(batch: StepBatch) -> Ints:
    """[S]: tokens drawn in each step; 1 if nothing is known of single tokens."""
    return np.ones(int(batch.starts[-1]), np.int64) if batch.token_counts is None else batch.token_counts


def value_of_first(of_tokens: Floats, counts: Ints) -> Floats:
    """[K] values, [S] tokens of each step -> [S]: the value of its first token; 0 for a step without tokens."""
    first = np.minimum(np.cumsum(counts) - counts, max(len(of_tokens) - 1, 0))
    return np.where(counts > 0, of_tokens[first], 0.0) if len(of_tokens) else np.zeros(len(counts))


def mean_by_step(of_tokens: Floats, batch: StepBatch) -> Floats:
    """[K] -> [S]: mean over the tokens of each step; 0 for a step without tokens."""
    counts = count_tokens(batch)
    step = np.repeat(np.arange(len(counts)), counts)
    return np.bincount(step, of_tokens, minlength=len(counts)) / np.maximum(counts, 1)
