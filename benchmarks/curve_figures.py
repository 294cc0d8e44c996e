"""Figures of a learning curve: its end, the area under it, and the difference of two over paired seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from scipy import stats

from gymcp.types import Json

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SPLIT = "test/seeds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Results on held-out tasks over the number of training episodes; one value per evaluation."""

    seed: int
    episodes: tuple[int, ...]
    success: tuple[float, ...]
    calls: tuple[float, ...]
    """Mean calls of an episode that succeeded; NaN if none did."""
    wasted: tuple[float, ...]
    """Mean calls beyond the gold's, of an episode that succeeded; NaN if none did."""
    singletons: float
    """Share of training steps in a state that no other step of their group has: GiGPO gives them no step advantage."""
    step_share: float
    """Share of |advantage| times tokens that GiGPO has, or would have, from comparing steps, not whole episodes."""

    @property
    def final(self) -> float:
        return self.success[-1]

    @property
    def final_calls(self) -> float:
        return self.calls[-1]

    @property
    def final_wasted(self) -> float:
        return self.wasted[-1]

    @property
    def area(self) -> float:
        """Mean success over the budget, linear between two evaluations."""
        if len(self.episodes) < 2:
            return self.final
        width = self.episodes[-1] - self.episodes[0]
        return float(np.trapezoid(self.success, self.episodes)) / width


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Mean difference of pairs, with its interval."""

    mean: float
    low: float | None
    """Lower bound of the 95 % interval by Student's t over pairs; None for a single pair."""
    high: float | None
    """Upper bound of that interval."""


def curve_of(rows: Sequence[Mapping[str, Json]], episodes: int, *, seed: int) -> Curve:
    """The curve of a run's rows; `episodes`: training episodes of one iteration."""
    evaluations = [row for row in rows if f"{SPLIT}/success" in row]
    iterations = [row for row in rows if "anchor/step_share" in row]
    return Curve(
        seed=seed,
        episodes=tuple(row["iteration"] * episodes for row in evaluations),
        success=tuple(row[f"{SPLIT}/success"] for row in evaluations),
        calls=tuple(row.get(f"{SPLIT}/calls_of_solved", math.nan) for row in evaluations),
        wasted=tuple(row.get(f"{SPLIT}/calls_of_solved_beyond_gold", math.nan) for row in evaluations),
        singletons=float(np.mean([row["anchor/singletons"] for row in iterations])),
        step_share=float(np.mean([row["anchor/step_share"] for row in iterations])),
    )


def compare_pairs(pairs: Sequence[tuple[float, float]]) -> Gain:
    """The gain of the first over the second of (mine, theirs), over seeds."""
    gains = np.array([mine - theirs for mine, theirs in pairs])
    mean = float(gains.mean())
    if len(gains) < 2:
        return Gain(mean=mean, low=None, high=None)
    half = float(stats.t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / np.sqrt(len(gains)))
    return Gain(mean=mean, low=mean - half, high=mean + half)


def draw(found: Mapping[str, Sequence[Curve]], path: Path, title: str) -> None:
    """Draw success, and below it the wasted calls of solved episodes: thin lines for runs, thick ones for means."""
    figure: Any
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 7.5), dpi=120, sharex=True, height_ratios=(2, 1))
    for number, (name, curves) in enumerate(found.items()):
        label = f"{name} ({len(curves)} seed{'s' * (len(curves) > 1)})"
        _lines(above, curves, [curve.success for curve in curves], f"C{number}", label)
        _lines(below, curves, [curve.wasted for curve in curves], f"C{number}", label)
    above.set(ylabel="success on held-out tasks", ylim=(-0.02, 1.02), title=title)
    below.set(xlabel="episodes practised", ylabel="calls beyond gold, of solved")
    below.set_ylim(bottom=-0.02)
    above.legend(fontsize=8)
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def _lines(axes: Any, curves: Sequence[Curve], values: Sequence[Sequence[float]], colour: str, label: str) -> None:
    for curve, of_curve in zip(curves, values, strict=True):
        axes.plot(curve.episodes, of_curve, color=colour, alpha=0.3, linewidth=1)
    length = min(map(len, values))
    mean = np.mean([of_curve[:length] for of_curve in values], axis=0)
    axes.plot(curves[0].episodes[:length], mean, color=colour, linewidth=2.2, marker="o", markersize=3, label=label)
