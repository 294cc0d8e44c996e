"""Power of a claim over a few seeds: the chance that it is found to hold, if the truth is as assumed."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from comparisons.registration import Claim

POINTS = 20_000
"""Quantiles of the estimated deviation over which the chance is averaged."""


def power_of_claim(claim: Claim, seeds: int) -> float | None:
    """The chance that the claim holds on that many seeds; None if it assumes nothing about the truth.

    Of a claim with bounds on both sides, the chance that both hold if only one of them can fail at a time, which is the
    least that it can be.
    """
    if claim.power is None:
        return None
    effect, sd = claim.power.effect, claim.power.sd
    upward = find_power(effect, sd, seeds, mean_min=claim.mean_min, low_above=claim.low_above)
    negated = [None if bound is None else -bound for bound in (claim.mean_max, claim.high_below)]
    downward = find_power(-effect, sd, seeds, mean_min=negated[0], low_above=negated[1])
    return max(upward + downward - 1.0, 0.0)


def find_power(
    effect: float, sd: float, seeds: int, *, mean_min: float | None = None, low_above: float | None = None
) -> float:
    """Chance that the mean of `seeds` normal values is at least `mean_min` and its 95 % t interval above `low_above`.

    `effect` and `sd` are the true mean and deviation of the values. A bound of None always holds. The mean and the
    estimated deviation are independent, so the normal tail is averaged over quantiles of the latter.
    """
    error, freedom = sd / math.sqrt(seeds), seeds - 1
    quantiles = (np.arange(POINTS) + 0.5) / POINTS
    estimated = error * np.sqrt(stats.chi2.ppf(quantiles, freedom) / freedom)
    bound = np.full(POINTS, -math.inf if mean_min is None else mean_min)
    if low_above is not None:
        bound = np.maximum(bound, low_above + stats.t.ppf(0.975, freedom) * estimated)
    return float(stats.norm.sf((bound - effect) / error).mean())
