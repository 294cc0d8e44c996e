"""Signal-to-noise ratio of each preset's gradient relative to GRPO's, estimated from a record alone.

Model of the policy: a table with one softmax pi for each state of each group; an action is a step's calls. The
episodes of a group are independent draws. If step t has the factor B (its advantage, times what the aggregation of the
loss makes of it), it adds B (e(a) - pi) to the gradient at its state. The gradient of success is the same with B = the
score. With G for a preset's gradient, and g for that of success:

    cos^2 = <E G, g>^2 / (E|G|^2 |g|^2)        signal-to-noise ratio = cos^2 / (1 - cos^2)

The result is this ratio over that of GRPO: about how many times fewer episodes teach the same. Products of two means
come from two halves of each group's episodes, so that the noise of one is independent of the other's; states that
fewer than four episodes visited have none. E|G|^2 is n times the noise of one of the n episodes, plus n (n - 1) times
|E G / n|^2. On a chain whose ratios are known, estimates from groups of 16 are within a quarter of them, and from
groups of 8 up to two fifths off: what divides by the deviation, as GRPO does, comes out too low.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gymcp.trainers.credit.diagnosis.policy_table import Mask, PolicyTable, sum_rows
from gymcp.trainers.credit.returns import totals
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints

BASE = "grpo"
"""Preset that the others are compared with."""
HALVINGS = 32
"""Random splits of each group into two halves, over which products are averaged."""
RESAMPLES = 1000
"""Bootstrap draws of groups, from which the intervals come."""
MIN_GROUPS = 5
"""Fewest groups for a bootstrap over groups."""
MAX_UNDEFINED = 0.025
"""Largest share of bootstrap draws in which GRPO's gradient may have no signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Signal-to-noise ratio of one preset's gradient, over GRPO's."""

    preset: str
    ratio: float
    low: float
    """Lower end of the 95 % interval, from a bootstrap over groups."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalEstimate:
    """Signals of all presets; none if the record cannot tell."""

    signals: tuple[Signal, ...]
    steps_used: float
    """Share of steps in states that count."""
    missing: str = ""
    """Reason why there are no signals."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _GroupSums:
    """Sums over the states of each group that has states that count."""

    along: Floats
    """[G, P]: <E G, g>."""
    size: Floats
    """[G, P]: E|G|^2."""
    truth: Floats
    """[G, 1]: |g|^2."""
    steps: int
    """Steps in the states that count."""


def estimate_signals(batch: StepBatch, factors: Mapping[str, Floats], actions: Ints) -> SignalEstimate:
    """Signals of presets from the factor of each step, [S] by preset, and the code of each step's action, [S].

    `factors` has those of `BASE`. A preset whose gradient the record cannot tell from that of success is left out.
    """
    names = list(factors)
    base = names.index(BASE)
    rng = np.random.default_rng(0)
    sums = _sum_by_group(batch, np.stack([factors[name] for name in names], axis=1), actions, rng)
    used, groups, told = sums.steps / len(actions), len(sums.truth), int(np.count_nonzero(sums.truth))
    if told < MIN_GROUPS:
        few = f"{told} group has" if told == 1 else f"{told} groups have"
        missing = f"{few} a state that enough episodes visited, and it takes {MIN_GROUPS}"
        return SignalEstimate(signals=(), steps_used=used, missing=missing)
    draws = rng.multinomial(groups, np.full(groups, 1 / groups), size=RESAMPLES).astype(float)
    found, drawn = _ratios(np.ones((1, groups)), sums)[0], _ratios(draws, sums)
    usable = drawn[:, base] > 0
    if not found[base] > 0 or np.mean(~usable) > MAX_UNDEFINED:
        missing = f"the gradient of {BASE} cannot be told from noise: record more episodes"
        return SignalEstimate(signals=(), steps_used=used, missing=missing)
    relative = drawn[usable] / drawn[usable][:, [base]]
    signals = tuple(
        Signal(preset=name, ratio=float(found[p] / found[base]), low=float(low), high=float(high))
        for p, name in enumerate(names)
        for low, high in [np.quantile(relative[:, p], (0.025, 0.975))]
        if np.isfinite(found[p]) and np.isfinite(high)
    )
    return SignalEstimate(signals=signals, steps_used=used)


def _ratios(weights: Floats, sums: _GroupSums) -> Floats:
    """[R, G] weights of groups -> [R, P] signal-to-noise ratios.

    0 for a gradient that is 0 or points away from success; NaN for one that is estimated as longer than its length
    allows.
    """
    along, size, truth = (np.asarray(weights @ each) for each in (sums.along, sums.size, sums.truth))
    explained = np.square(np.maximum(along, 0.0))
    left = size * truth - explained
    ratio = np.divide(explained, left, out=np.full_like(left, np.nan), where=left > 0)
    return np.where(explained > 0, ratio, 0.0)


def _sum_by_group(batch: StepBatch, factors: Floats, actions: Ints, rng: np.random.Generator) -> _GroupSums:
    table, presets = PolicyTable.of(batch, actions), factors.shape[1]
    values = np.column_stack((factors, totals(batch.column("reward"), batch.starts)))[table.steps]
    trajectory = batch.keys["trajectory"][table.steps]
    states = int(table.state.code.max(initial=-1)) + 1
    products, valid = np.zeros((states, 2 * presets + 1)), np.zeros(states)
    for _ in range(HALVINGS):
        half = _halve(batch, rng)[trajectory]
        first, second = table.gradient(values, half), table.gradient(values, ~half)
        in_first, in_second = table.count(half), table.count(~half)
        enough = (in_first > 1) & (in_second > 1)
        products[enough] += (
            sum_rows(_multiply(first, second), table.state_of_cell)[enough] / (in_first * in_second)[enough, None]
        )
        valid += enough
    visits = table.count(np.ones(len(trajectory), bool))[:, None]
    products *= visits * (visits - 1) / np.maximum(valid, 1)[:, None]
    group = batch.keys["group"][table.steps][np.unique(table.state.code, return_index=True)[1]]
    episodes = np.bincount(batch.keys["group"][batch.starts[:-1]])[group][:, None]
    own = 1 - 1 / episodes  # share of a score that its own part in the group's mean leaves
    code = np.unique(group, return_inverse=True)[1]
    return _GroupSums(
        along=sum_rows(products[:, :presets], code),
        size=sum_rows(table.noise(values[:, :presets]) + own**2 * products[:, presets : 2 * presets], code),
        truth=sum_rows(products[:, -1:] / own, code),  # n (n - 1) pairs stand for the square of a mean over n
        steps=int((valid > 0)[table.state.code].sum()),
    )


def _halve(batch: StepBatch, rng: np.random.Generator) -> Mask:
    """[N]: true for a random half of the trajectories of each group."""
    group = batch.keys["group"][batch.starts[:-1]]
    order = np.lexsort((rng.random(len(group)), group))
    place = np.arange(len(group)) - np.searchsorted(group[order], group[order])
    odd = rng.integers(0, 2, int(group.max()) + 1)[group[order]]  # the half that gets the odd one out
    half = np.zeros(len(group), bool)
    half[order] = (place + odd) % 2 == 0
    return half


def _multiply(first: Floats, second: Floats) -> Floats:
    """[C, P + 1] gradients of two halves -> [C, 2 P + 1]: with that of success, with their own, and the last's own."""
    along = (first[:, :-1] * second[:, -1:] + second[:, :-1] * first[:, -1:]) / 2
    return np.column_stack((along, first * second))
