"""What reshapes an advantage after the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gymcp.trainers.credit.estimators import AdvantageTerm, StdScale, estimate_advantage
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Whiten:
    """Over the whole batch: less the mean, over the deviation."""

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
    """What is below zero counts `share` of itself.

    Pushing down what failed says little of what would not have, and in a small model it blurs what is known: with all
    of it `tiny` did not climb, with a tenth it did (benchmarks/RESULTS.md).
    """

    scale: float

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        return np.where(advantage < 0, self.scale * advantage, advantage)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyModulation:
    """EMPG: confident steps get more of the advantage, and a bonus for leading to a clear next step; then centred.

    Reads the column ``entropy``: the mean entropy of the step's token distributions. The bonus is added whatever the
    sign of the advantage, as published.

    Source: arXiv:2509.09265, project page.
    """

    sharpness: float = 1.0
    bonus_sharpness: float = 1.0
    bonus: float = 0.1

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        entropy = batch.column("entropy")
        span = float(entropy.max() - entropy.min())
        level = (entropy - entropy.min()) / span if span > 0 else np.zeros_like(entropy)
        gain = np.exp(-self.sharpness * level)
        clear = np.exp(-self.bonus_sharpness * level)
        ahead = np.zeros_like(clear)
        ahead[:-1] = clear[1:]
        ahead[batch.starts[1:] - 1] = 0.0
        shaped = advantage * gain / gain.mean() + self.bonus * ahead
        return np.asarray(shaped - shaped.mean(), float)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyToolBonus:
    """ASPO: a correct trajectory that uses its tools earlier than others gets more, bounded by its own advantage.

    Reads ``first_use`` (where in the trajectory the first tool call stands, in tokens; NaN without one or where the
    trajectory is not correct) and ``length`` (its tokens). What is shaped is the advantage, which no normalisation
    can cancel afterwards.

    Source: arXiv:2508.19201, as told by others; its own code was not at hand.
    """

    delta: float = -2.0
    bound: float = 0.7

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        where, length = batch.column("first_use"), batch.column("length")
        first = batch.starts[:-1]
        group = batch.keys["group"][first]
        counted = ~np.isnan(where[first])
        count = np.bincount(group, counted)
        mean = np.bincount(group, np.where(counted, where[first], 0.0)) / np.maximum(count, 1)
        span = np.bincount(group, np.where(counted, length[first], 0.0)) / np.maximum(count, 1)
        of_step = batch.keys["group"]
        wished = self.delta * (where - mean[of_step]) / np.maximum(span[of_step], 1e-9)
        most = self.bound * np.abs(advantage)
        return advantage + np.where(np.isnan(where), 0.0, np.clip(np.nan_to_num(wished), -most, most))
