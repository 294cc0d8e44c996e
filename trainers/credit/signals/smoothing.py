"""Entropy smoothing (EPO): the entropy bonus of a step depends on the entropy that steps of its index have had."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints

ENTROPY_WEIGHT = "entropy_weight"
"""Column with the factor of `Loss.entropy` on the tokens of each step; a batch without it has 1 everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropySmoothing:
    """Column ``entropy_weight``: the factor of the entropy bonus on the tokens of each step.

    It is the gradient of H - `weight` P by H, where P is how far the entropy H of the step lies outside of the band
    from `low` to `high` times the mean entropy that steps of this index had in earlier batches: 1 inside, less above,
    more below. With `iterations`, it falls with the phase of the run. With ``hinge=False`` it is the phase alone: the
    authors' penalty is a constant outside of the band, which has no gradient.

    Source: WujiangXu/EPO, verl/workers/actor/dp_actor.py (there ``low=0``, ``high=2`` or ``low=0.8``, ``high=1.2``).
    """

    low: float = 0.8
    high: float = 1.2
    weight: float = 2.0
    hinge: bool = True
    iterations: int = 0
    """Batches of the whole run, over which the bonus fades; 0: it does not fade."""

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        entropy, turn = batch.column("entropy"), batch.keys["turn"]
        known = mean_by_turn(trackers.turn_entropy, turn)
        outside = np.where(entropy > self.high * known, -1.0, np.where(entropy < self.low * known, 1.0, 0.0))
        factor = np.where(np.isnan(known), 1.0, 1.0 + self.weight * outside) if self.hinge else np.ones_like(entropy)
        phase = phase_weight(trackers.batches / self.iterations) if self.iterations else 1.0
        later = replace(
            trackers, turn_entropy=add_entropies(trackers.turn_entropy, entropy, turn), batches=trackers.batches + 1
        )
        return batch.with_columns(**{ENTROPY_WEIGHT: phase * factor}), later


def mean_by_turn(history: Mapping[str, Sequence[float]], turn: Ints) -> Floats:
    """[S] indices of steps -> [S]: mean entropy (nats) of earlier steps of that index; NaN if there were none."""
    means = np.full(int(turn.max(initial=0)) + 1, np.nan)
    for index, (total, count) in history.items():
        if int(index) < len(means):
            means[int(index)] = total / count
    return means[turn]


def add_entropies(history: Mapping[str, Sequence[float]], entropy: Floats, turn: Ints) -> dict[str, Sequence[float]]:
    """The sums and numbers by index of a step, with those of these steps."""
    totals, counts = np.bincount(turn, entropy), np.bincount(turn)
    after = dict(history)
    for index in np.flatnonzero(counts).tolist():
        total, count = after.get(str(index), (0.0, 0))
        after[str(index)] = (total + float(totals[index]), count + int(counts[index]))
    return after


def phase_weight(done: float) -> float:
    """Factor of the entropy bonus after that share of the run, in [0, 1]: slowly from 1 to 0.83, then fast to 0.04."""
    progress = 2 * min(max(done, 0.0), 1.0)
    if progress <= 1.0:
        return 1.0 - 0.2 * (1.0 - math.exp(-2.0 * progress))
    return 0.8 * math.exp(-3.0 * (progress - 1.0))
