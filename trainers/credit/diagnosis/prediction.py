"""Prediction of what GiGPO reaches, from episodes of the policy at the start and from what GRPO reaches.

The rule: with r times the signal of GRPO's gradient, the log-odds of success rise r times as far in as many episodes.
With short episodes, or any other reason against step credit, success is predicted to differ by less than
`MAX_DIFFERENCE`. benchmarks/predicted_practice.py compares the rule with simulated practice; docs/credit.md names the
registered comparisons that test it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gymcp.trainers.credit.diagnosis.advice import ENOUGH_STEPS, reasons_against
from gymcp.trainers.credit.diagnosis.diagnosis import Diagnosis

MAX_DIFFERENCE = 0.07
"""Largest difference in success in simulated worlds with short episodes, on average over seeds."""
NEAREST = 0.005
"""Smallest distance of a success from 0 and 1 for its log-odds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Success on held-out tasks after as many episodes as GRPO practised."""

    preset: str
    success: float
    low: float
    """Success at the lower end of the interval of the preset's signal-to-noise ratio."""
    high: float


def predict_success(found: Diagnosis, start: float, end: float) -> tuple[Prediction, ...]:
    """Predictions for GiGPO and its measured variants with norm "mean_std", if GRPO goes from `start` to `end`.

    The signals of the other variants are estimated too high for a prediction. Empty if GRPO gains nothing, or if the
    record tells no signal and gives no reason against step credit.
    """
    if end <= start:
        return ()
    signals = [each for each in found.signal.signals if is_predictable(each.preset)]
    if reasons_against(found) or found.steps_per_episode < ENOUGH_STEPS:
        low, high = max(end - MAX_DIFFERENCE, 0.0), min(end + MAX_DIFFERENCE, 1.0)
        names = [each.preset for each in signals] or ["gigpo"]
        return tuple(Prediction(preset=name, success=end, low=low, high=high) for name in names)
    return tuple(
        Prediction(
            preset=each.preset,
            success=scale_gain(start, end, each.ratio),
            low=scale_gain(start, end, each.low),
            high=scale_gain(start, end, each.high),
        )
        for each in signals
    )


def is_predictable(name: str) -> bool:
    """True for a variant of GiGPO that divides by the deviation, as GRPO does."""
    return name.startswith("gigpo") and "norm mean" not in name.split(", ")


def scale_gain(start: float, end: float, ratio: float) -> float:
    """Success whose log-odds lie `ratio` times as far from those of `start` as those of `end` do."""
    before, after = _log_odds(start), _log_odds(end)
    return 1.0 / (1.0 + math.exp(-(before + ratio * (after - before))))


def _log_odds(share: float) -> float:
    kept = min(max(share, NEAREST), 1.0 - NEAREST)
    return math.log(kept / (1.0 - kept))
