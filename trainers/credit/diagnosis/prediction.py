"""Prediction of what other presets reach, from a training run with GRPO and the signals of its gradients.

The rule: with r times the signal of GRPO's gradient, the log-odds of success rise r times as far in as many episodes.
If there are reasons against step credit, success is predicted to differ by less than `MAX_DIFFERENCE`. The rule comes
from simulated practice; docs/credit.md names the registered comparisons that test it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gymcp.trainers.credit.diagnosis.advice import reasons_against
from gymcp.trainers.credit.diagnosis.diagnosis import Diagnosis

MAX_DIFFERENCE = 0.05
"""Difference in success that stays below what a comparison of a few seeds can show."""
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
    """Predictions for the variants of GiGPO, if GRPO's success went from `start` to `end` in the diagnosed run.

    Empty if GRPO gained nothing, or if the record tells no signal and gives no reason against step credit.
    """
    if end <= start:
        return ()
    names = {each.preset: each for each in found.signal.signals if each.preset.startswith("gigpo")}
    if reasons_against(found):
        low, high = max(end - MAX_DIFFERENCE, 0.0), min(end + MAX_DIFFERENCE, 1.0)
        return tuple(Prediction(preset=name, success=end, low=low, high=high) for name in names or ("gigpo",))
    return tuple(
        Prediction(
            preset=name,
            success=scale_gain(start, end, each.ratio),
            low=scale_gain(start, end, each.low),
            high=scale_gain(start, end, each.high),
        )
        for name, each in names.items()
    )


def scale_gain(start: float, end: float, ratio: float) -> float:
    """Success whose log-odds lie `ratio` times as far from those of `start` as those of `end` do."""
    before, after = _log_odds(start), _log_odds(end)
    return 1.0 / (1.0 + math.exp(-(before + ratio * (after - before))))


def _log_odds(share: float) -> float:
    kept = min(max(share, NEAREST), 1.0 - NEAREST)
    return math.log(kept / (1.0 - kept))
