"""When training ends before its time: functions of the metrics, so that a resumed run stops where it would have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gymcp.trainers.recipe.recipe import LearnRecipe
from gymcp.types import Json

MAX_LOST = 3
"""Iterations one after another in which every episode was lost to infrastructure; then training stops."""
MOST_UNUSABLE = 0.95
"""Share of steps without a usable action from which on a policy has lost its form, if it ever had one,"""
ONCE_UNUSABLE = 0.5
"""which is to say that a smaller share than this was unusable once."""


def collapse(rows: Sequence[Mapping[str, Json]], learn: LearnRecipe) -> str:
    """Why a policy has collapsed: no entropy, or no usable action, for `patience` iterations. Empty: it has not."""
    entropies = [row["entropy"] for row in rows if "entropy" in row][-learn.patience :]
    if len(entropies) == learn.patience and max(entropies) < learn.min_entropy:
        return (
            f"the policy collapsed: its entropy was below {learn.min_entropy} for {learn.patience} iterations,"
            f" now {entropies[-1]:.2g}"
        )
    unusable = [row["unusable"] for row in rows if "unusable" in row]
    before, lately = unusable[: -learn.patience], unusable[-learn.patience :]
    if before and min(before) < ONCE_UNUSABLE and min(lately) > MOST_UNUSABLE:
        return (
            f"the policy collapsed: more than {MOST_UNUSABLE:.0%} of its steps had no usable action for"
            f" {learn.patience} iterations, and once it was {min(before):.0%}"
        )
    return ""


def lost(rows: Sequence[Mapping[str, Json]]) -> int:
    """How many of the last iterations, one after another, were lost to infrastructure."""
    return next((back for back, row in enumerate(reversed(rows)) if "skipped" not in row), len(rows))
