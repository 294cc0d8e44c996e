"""What a learning curve comes to: its end, the area under it, and how two of them differ over paired seeds."""

from __future__ import annotations

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
    """Held-out tasks over the episodes that were practised."""

    seed: int
    episodes: tuple[int, ...]
    success: tuple[float, ...]
    calls: float | None
    """Of an episode that succeeded, in the end; None where none did."""
    wasted: float | None
    """Of these, beyond the gold's."""

    @property
    def final(self) -> float:
        return self.success[-1]

    @property
    def area(self) -> float:
        """Mean success over the budget, straight between two looks."""
        if len(self.episodes) < 2:
            return self.final
        width = self.episodes[-1] - self.episodes[0]
        return float(np.trapezoid(self.success, self.episodes)) / width


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    mean: float
    low: float | None
    """95 % by Student's t over pairs; None for a single pair."""
    high: float | None


def curve_of(rows: Sequence[Mapping[str, Json]], episodes: int, *, seed: int) -> Curve:
    """The looks among a run's rows; `episodes`: of one iteration."""
    looks = [row for row in rows if f"{SPLIT}/success" in row]
    return Curve(
        seed=seed,
        episodes=tuple(row["iteration"] * episodes for row in looks),
        success=tuple(row[f"{SPLIT}/success"] for row in looks),
        calls=looks[-1].get(f"{SPLIT}/calls_of_solved"),
        wasted=looks[-1].get(f"{SPLIT}/calls_of_solved_beyond_gold"),
    )


def paired(pairs: Sequence[tuple[float, float]]) -> Gain:
    """(mine, theirs) over seeds -> how much more mine is."""
    gains = np.array([mine - theirs for mine, theirs in pairs])
    mean = float(gains.mean())
    if len(gains) < 2:
        return Gain(mean=mean, low=None, high=None)
    half = float(stats.t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / np.sqrt(len(gains)))
    return Gain(mean=mean, low=mean - half, high=mean + half)


def draw(found: Mapping[str, Sequence[Curve]], path: Path, title: str) -> None:
    """Every run thin, the mean of a contender's seeds thick."""
    figure: Any
    figure, axes = plt.subplots(figsize=(8, 5), dpi=120)
    for number, (name, curves) in enumerate(found.items()):
        colour = f"C{number}"
        for curve in curves:
            axes.plot(curve.episodes, curve.success, color=colour, alpha=0.3 if len(curves) > 1 else 0.0, linewidth=1)
        length = min(len(curve.success) for curve in curves)
        mean = np.mean([curve.success[:length] for curve in curves], axis=0)
        label = f"{name} ({len(curves)} seed{'s' * (len(curves) > 1)})"
        axes.plot(curves[0].episodes[:length], mean, color=colour, linewidth=2.2, marker="o", markersize=3, label=label)
    axes.set(xlabel="episodes practised", ylabel="success on held-out tasks", ylim=(-0.02, 1.02), title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
