"""Transforms: changes to an advantage after the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gymcp.trainers.credit.estimators import AdvantageTerm, StdScale, estimate_advantage
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Whiten:
    """Whitening over the whole batch: subtract the mean, divide by the deviation."""

    scale: StdScale
    by_tokens: bool = False
    unit: Literal["trajectory", "step"] = "step"

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        term = AdvantageTerm(
            signal="advantage",
            key=(),
            unit=self.unit,
            returns="none",
            scale=self.scale,
            by_tokens=self.by_tokens,
        )
        return estimate_advantage(term, batch.with_columns(advantage=advantage))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleNegative:
    """Factor on advantages below zero.

    A negative advantage says little about better actions, and in a small model it blurs what the policy has learnt: at
    full weight `tiny` did not improve, at a tenth it did (benchmarks/RESULTS.md).
    """

    scale: float

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        return np.where(advantage < 0, self.scale * advantage, advantage)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleToBatch:
    """Division by the deviation over the trajectories of the batch, bounded; 0 stays 0.

    Each trajectory counts once, with the advantage of its first step.
    """

    bound: float = 3.0
    epsilon: float = 1e-8

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        of_trajectories = advantage[batch.starts[:-1]]
        deviation = float(of_trajectories.std(ddof=1)) if len(of_trajectories) > 1 else 1.0
        return np.clip(advantage / (deviation + self.epsilon), -self.bound, self.bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeSteps:
    """Charge for what a step costs by itself: subtracted after everything else, so that no other step pays for it."""

    weights: tuple[tuple[str, float], ...]
    """(column, weight) of each cost."""

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        return charge_steps(advantage, [(batch.column(name), weight) for name, weight in self.weights])


def charge_steps(advantage: Floats, costs: Sequence[tuple[Floats, float]]) -> Floats:
    """[S] advantages, ([S] costs, weight) of each kind -> [S]: A(t) less the weighted costs of step t.

    The cost of step t is in the advantage of step t alone: not in the return of the steps before it, which led to the
    situation and did not choose the call; and in no mean or deviation, which would pass it on to other episodes.
    """
    return advantage - sum((weight * cost for cost, weight in costs), np.zeros_like(advantage))


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyModulation:
    """EMPG: confident steps get more of the advantage, and a bonus for leading to a confident next step; then the
    advantage is centred.

    Reads the column ``entropy``: the mean entropy of the step's token distributions. The bonus is added whatever the
    sign of the advantage, as published.

    Source: arXiv:2509.09265, project page.
    """

    sharpness: float = 1.0
    bonus_sharpness: float = 1.0
    bonus: float = 0.1

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        shaped = self.shape(batch, advantage)
        return np.asarray(shaped - shaped.mean(), float)

    def shape(self, batch: StepBatch, advantage: Floats) -> Floats:
        """[S] -> [S]: the advantage before it is centred."""
        _, gain, clear = measure_confidence(
            batch.column("entropy"), sharpness=self.sharpness, bonus_sharpness=self.bonus_sharpness
        )
        next_clear = np.zeros_like(clear)
        next_clear[:-1] = clear[1:]
        next_clear[batch.starts[1:] - 1] = 0.0
        return np.asarray(advantage * gain + self.bonus * next_clear, float)


def measure_confidence(entropy: Floats, *, sharpness: float, bonus_sharpness: float) -> tuple[Floats, Floats, Floats]:
    """[S] -> [S] each: the entropy on a scale from 0, the lowest of the batch, to 1, the highest; the factor of the
    advantage, whose mean is 1; and how clear the step is, which is the bonus of the step before it."""
    span = float(entropy.max() - entropy.min())
    level = (entropy - entropy.min()) / span if span > 0 else np.zeros_like(entropy)
    gain = np.exp(-sharpness * level)
    return level, np.asarray(gain / gain.mean(), float), np.exp(-bonus_sharpness * level)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyToolBonus:
    """ASPO: a bonus for solved trajectories that use their tools earlier than others, bounded by their own advantage.

    Reads ``first_use`` (token at which the first tool call stands; NaN for a trajectory without one or unsolved) and
    ``length`` (tokens of the trajectory). The bonus is added to the advantage itself, so that no normalisation can
    cancel it afterwards.

    Source: arXiv:2508.19201, through secondary sources; the authors' code was not available.
    """

    delta: float = -2.0
    bound: float = 0.7

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        first_use, length = batch.column("first_use"), batch.column("length")
        first = batch.starts[:-1]
        group = batch.keys["group"][first]
        counted = ~np.isnan(first_use[first])
        count = np.bincount(group, counted)
        mean = np.bincount(group, np.where(counted, first_use[first], 0.0)) / np.maximum(count, 1)
        span = np.bincount(group, np.where(counted, length[first], 0.0)) / np.maximum(count, 1)
        of_step = batch.keys["group"]
        bonus = self.delta * (first_use - mean[of_step]) / np.maximum(span[of_step], 1e-9)
        limit = self.bound * np.abs(advantage)
        return advantage + np.where(np.isnan(first_use), 0.0, np.clip(np.nan_to_num(bonus), -limit, limit))
