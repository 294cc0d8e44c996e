"""Step-level credit from recorded state keys."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal

Norm = Literal["mean", "mean_std"]
EPSILON = 1e-6


def returns_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """[T] -> [T]: the discounted sum of rewards from each step on."""
    returns: list[float] = []
    ahead = 0.0
    for reward in reversed(rewards):
        ahead = reward + gamma * ahead
        returns.append(ahead)
    return returns[::-1]


def compare(values: Sequence[float], norm: Norm) -> list[float]:
    """[N] -> [N]: each value less the mean; with ``mean_std`` also over the unbiased standard deviation.

    Of one value alone the mean is taken as 0 and the deviation as 1, so it stands for itself; who wants 0 there
    decides so.
    """
    if len(values) == 1:
        return [values[0] / (1.0 + EPSILON) if norm == "mean_std" else values[0]]
    mean = math.fsum(values) / len(values)
    if norm == "mean":
        return [value - mean for value in values]
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return [(value - mean) / (deviation + EPSILON) for value in values]


def gigpo(
    rewards: Sequence[Sequence[float]],
    anchors: Sequence[Sequence[Hashable]],
    *,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    norm: Norm = "mean",
) -> list[list[float]]:
    """[G, T_g] -> [G, T_g]: the episode's advantage in its group plus a step advantage.

    The episodes are of one task and one policy version; each counts once in the episode statistics, however long.
    Steps of any episode taken in the same anchor state (`Step.state_key`) form a step group; inside it, returns-to-go
    are compared. A state seen once has step advantage 0. A group of one episode has its own return as advantage.

    Source: arXiv:2505.10978, with trajectory-weighted episode statistics.
    """
    episode = compare([math.fsum(row) for row in rewards], norm)
    returns = [returns_to_go(row, gamma) for row in rewards]
    groups: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for g, t, anchor in _cells(anchors):
        groups[anchor].append((g, t))
    advantages = [[episode[g]] * len(row) for g, row in enumerate(rewards)]
    for cells in groups.values():
        if len(cells) > 1:
            for (g, t), step in zip(cells, compare([returns[g][t] for g, t in cells], norm), strict=True):
                advantages[g][t] += step_weight * step
    return advantages


def _cells(ragged: Sequence[Sequence[Hashable]]) -> Iterable[tuple[int, int, Hashable]]:
    return ((g, t, value) for g, row in enumerate(ragged) for t, value in enumerate(row))
