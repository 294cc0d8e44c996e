"""The advantage estimator: compares one signal within a group. A paper's advantage is a weighted sum of such terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betaln, xlogy

from gymcp.errors import ConfigError
from gymcp.trainers.credit.returns import gae, returns_between_cuts, returns_to_go, totals
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints

ROUNDING_SHARE = 1e-12
"""Relative difference from the mean below which two values are equal but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StdScale:
    """Division by the standard deviation."""

    ddof: int = 1
    epsilon: float = 1e-6
    epsilon_in_variance: bool = False
    """Add epsilon to the variance, before the root, instead of to the deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BetaDensity:
    """Division by the density, at the group's mean, of the Beta distribution fitted to the means of all groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageTerm:
    """One summand of an advantage, [S] -> [S]: how a step's signal compares with the others of its group."""

    signal: str
    """Name of a column; a step whose value is NaN is not compared and gets 0."""
    key: tuple[str, ...] = ("group",)
    """Keys that two steps must share to be compared; empty: all steps of the batch are compared."""
    unit: Literal["trajectory", "step", "leaf"] = "trajectory"
    """Unit that counts once in the statistics. With steps as the unit, a long failure counts many times. leaf: the ends
    of a tree, which are steps whose column ``leaf`` is 1, and if tasks are compared the batch's inner ends; all steps
    are compared with them."""
    returns: Literal["none", "total", "discounted", "gae"] = "total"
    """Return along the trajectory that is computed from the signal before the comparison (`gae` reads the column
    ``value``)."""
    gamma: float = 1.0
    lam: float = 1.0
    cut_on: str | None = None
    """Name of a column; a discounted return ends before a step whose value in it is not 0, and that step's own return
    is its own signal."""
    centre: Literal["mean", "leave_one_out", "none"] = "mean"
    scale: StdScale | BetaDensity | None = None
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of a step whose group has no other member: 0, or its own value (mean taken as 0, deviation as 1)."""
    by_tokens: bool = False
    """Weigh each unit by its tokens in the statistics: a step by its own, a trajectory by those of all its steps."""
    penalty: str | None = None
    """Name of a column that is subtracted from each step's value after its return, so that no earlier step is
    blamed."""
    order: Literal["return_then_norm", "norm_then_return"] = "return_then_norm"
    """norm_then_return: signals are compared, and what comes out is summed along the trajectory. That is biased if the
    policy decides when to stop (`cautions`)."""
    weight: float = 1.0


def estimate_advantage(term: AdvantageTerm, batch: StepBatch) -> Floats:
    """[S]: the term's advantage, unweighted. Raises ConfigError for a column that the batch does not have."""
    signal = batch.column(term.signal)
    present = ~np.isnan(signal)
    signal = np.where(present, signal, 0.0)
    if term.order == "norm_then_return":
        return _compute_return(term, np.where(present, _compare_with_group(term, batch, signal, present), 0.0), batch)
    return np.where(present, _compare_with_group(term, batch, _compute_return(term, signal, batch), present), 0.0)


def _compute_return(term: AdvantageTerm, signal: Floats, batch: StepBatch) -> Floats:
    match term.returns:
        case "total":
            return totals(signal, batch.starts)
        case "discounted":
            return discount(term, signal, batch)
        case "gae":
            values = batch.column("value")
            return gae(signal, values, batch.starts, gamma=term.gamma, lam=term.lam)
        case "none":
            return signal


def discount(term: AdvantageTerm, signal: Floats, batch: StepBatch) -> Floats:
    """[S] -> [S]: the term's discounted return from each step on."""
    if term.cut_on is None:
        return returns_to_go(signal, batch.starts, term.gamma)
    return returns_between_cuts(signal, batch.starts, term.gamma, batch.column(term.cut_on) != 0)


def _compare_with_group(
    term: AdvantageTerm, batch: StepBatch, values: Floats, present: npt.NDArray[np.bool_]
) -> Floats:
    penalised = values - batch.column(term.penalty) if term.penalty else values
    if term.centre == "none" and term.scale is None:
        return penalised
    group = combine_keys(tuple(batch.keys[name] for name in term.key), len(values))
    if term.unit == "trajectory":  # one value a trajectory: that of its first step in the term
        positions = np.flatnonzero(present)
        counted = np.zeros(len(values), bool)
        counted[positions[np.diff(batch.keys["trajectory"][positions], prepend=-1) != 0]] = True
        statistics = _GroupStatistics(term, group, values, counted, batch)
    elif term.unit == "leaf" and term.key == ("group",):
        ends = batch.inner_ends
        counted = np.append(present & (batch.column("leaf") != 0), np.ones(len(ends.steps), bool))
        group = combine_keys((np.append(batch.keys["group"], ends.groups),), len(counted))
        leaves = np.append(penalised, ends.scores)
        return _GroupStatistics(term, group, leaves, counted, batch).compare(leaves)[: len(values)]
    else:
        counted = present & (batch.column("leaf") != 0) if term.unit == "leaf" else present
        statistics = _GroupStatistics(term, group, penalised, counted, batch)
    return statistics.compare(penalised)


class _GroupStatistics:
    """Statistics of the counted values of each group."""

    def __init__(
        self, term: AdvantageTerm, group: Ints, values: Floats, counted: npt.NDArray[np.bool_], batch: StepBatch
    ) -> None:
        self._term, self._group = term, group
        own = np.ones(len(values))
        if term.by_tokens:
            own[: int(batch.starts[-1])] = _unit_tokens(term, batch)
        weights = np.where(counted, own, 0.0)
        self._own, self._units = own, np.bincount(group, counted)
        self._count = np.bincount(group, weights)
        is_used = self._count > 0
        total = np.bincount(group, weights * values)
        self._mean = np.divide(total, self._count, out=np.zeros_like(total), where=is_used)
        self._squares = np.bincount(group, weights * (values - self._mean[group]) ** 2)

    def compare(self, values: Floats) -> Floats:
        is_single = (self._count < 2) | (self._units < 2)
        mean = np.where(is_single, 0.0, self._mean) if self._term.centre != "none" else np.zeros_like(self._mean)
        difference = values - mean[self._group]
        difference[np.abs(difference) <= ROUNDING_SHARE * np.abs(values)] = 0.0
        if self._term.centre == "leave_one_out":
            count = self._count[self._group]
            has_others = ~is_single[self._group] & (count > self._own)
            difference *= np.divide(count, count - self._own, out=np.ones_like(count), where=has_others)
        if self._term.scale is not None:
            difference /= self._scale(self._term.scale, is_single)[self._group]
        return np.where(is_single[self._group], 0.0, difference) if self._term.singleton == "zero" else difference

    def _scale(self, scale: StdScale | BetaDensity, is_single: npt.NDArray[np.bool_]) -> Floats:
        if isinstance(scale, BetaDensity):
            return beta_density(self._mean[self._count > 0], self._mean)
        variance = self._squares / np.where(is_single, 1.0, self._count - scale.ddof)
        if scale.epsilon_in_variance:
            return np.sqrt(np.where(is_single, 1.0, variance) + scale.epsilon)
        return np.sqrt(np.where(is_single, 1.0, variance)) + scale.epsilon


def _unit_tokens(term: AdvantageTerm, batch: StepBatch) -> Floats:
    """[S]: tokens of the unit that each step belongs to."""
    tokens = batch.column("tokens")
    return totals(tokens, batch.starts) if term.unit == "trajectory" else tokens


def beta_density(means: Floats, at: Floats) -> Floats:
    """[K] group means, [J] -> [J]: density of BNPO's Beta distribution, clipped to [1e-6, 1e6].

    Its parameters follow from the moments of the means, weakened to a third and never below 1. If the means do not
    vary, they are 1, which means no scaling.

    Raises ConfigError for a mean outside [0, 1]. Source: arXiv:2506.02864 and its authors' repository.
    """
    if np.any((means < 0) | (means > 1)):
        raise ConfigError(
            f"credit: bnpo needs scores from 0 to 1, and means of groups go from {means.min():g} to {means.max():g}"
        )
    mean, variance = float(means.mean()), float(means.var(ddof=1)) if len(means) > 1 else 0.0
    if variance <= 0.0:
        return np.ones_like(at)
    strength = mean * (1 - mean) / variance - 1
    alpha, beta = max(1.0, 1 + strength * mean / 3), max(1.0, 1 + strength * (1 - mean) / 3)
    log_density = xlogy(alpha - 1, at) + xlogy(beta - 1, 1 - at) - betaln(alpha, beta)
    return np.asarray(np.clip(np.exp(log_density), 1e-6, 1e6), float)


def combine_keys(keys: tuple[Ints, ...], length: int) -> Ints:
    """[S] each -> [S]: one number for each combination of keys, from 0 without gaps; all 0 without keys."""
    code = np.zeros(length, np.int64)
    for key in keys:
        span = int(key.max(initial=0)) + 1
        code = _renumber(code * span + key)
    return code


def _renumber(code: Ints) -> Ints:
    """[S] -> [S]: the codes renumbered from 0 without gaps; sorted only if the numbers are far larger than their
    count."""
    if int(code.max(initial=0)) < 4 * len(code):
        return np.asarray((np.cumsum(np.bincount(code) > 0) - 1)[code], np.int64)
    return np.unique(code, return_inverse=True)[1].astype(np.int64)
