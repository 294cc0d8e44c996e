"""Reasons to stop training early: functions of the metrics, so that a resumed run stops at the same iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gymcp.trainers.recipe.recipe import LearnRecipe
from gymcp.types import Json

MAX_LOST_ITERATIONS = 3
"""Consecutive iterations in which every episode was lost to infrastructure, after which training stops."""
COLLAPSED_UNUSABLE_SHARE = 0.95
"""A policy has collapsed if more than this share of its steps has no usable action, although the share was once below
`HEALTHY_UNUSABLE_SHARE`."""
HEALTHY_UNUSABLE_SHARE = 0.5
"""Share of steps without a usable action below which a policy has learnt to write actions."""


def collapse_reason(rows: Sequence[Mapping[str, Json]], learn: LearnRecipe) -> str:
    """Why the policy has collapsed: no entropy, or no usable action, for `patience` iterations. Empty: it has not."""
    entropies = [row["entropy"] for row in rows if "entropy" in row][-learn.patience :]
    if len(entropies) == learn.patience and max(entropies) < learn.min_entropy:
        return (
            f"the policy collapsed: its entropy was below {learn.min_entropy} for {learn.patience} iterations,"
            f" now {entropies[-1]:.2g}"
        )
    unusable = [row["unusable"] for row in rows if "unusable" in row]
    before, recent = unusable[: -learn.patience], unusable[-learn.patience :]
    if before and min(before) < HEALTHY_UNUSABLE_SHARE and min(recent) > COLLAPSED_UNUSABLE_SHARE:
        return (
            f"the policy collapsed: more than {COLLAPSED_UNUSABLE_SHARE:.0%} of its steps had no usable action for"
            f" {learn.patience} iterations, and once it was {min(before):.0%}"
        )
    return ""


def consecutive_lost(rows: Sequence[Mapping[str, Json]]) -> int:
    """Number of latest consecutive iterations in which every episode was lost to infrastructure."""
    return next((back for back, row in enumerate(reversed(rows)) if "skipped" not in row), len(rows))
