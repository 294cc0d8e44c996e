"""Recorded episodes as token rows to train on: exactly what the engine saw and drew, nothing encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.settings.arrays import Floats
from gymcp.types import Row, Sampled, Trajectory


def rows_of(trajectory: Trajectory) -> tuple[Row, ...]:
    """The contexts of an episode, one after the other.

    A step whose prompt goes on where the last one's tokens ended belongs to the same row; an edited context opens a new
    one. Steps without tokens belong to none. Raises ConfigError where no step has any: it was not sampled from a
    policy that gives its tokens.
    """
    rows: list[Row] = []
    open_row: list[tuple[int, Sampled]] = []
    for index, step in enumerate(trajectory.steps):
        if step.sampled is None:
            continue
        if open_row and not _continues(open_row[-1][1], step.sampled):
            rows.append(_row(open_row))
            open_row = []
        open_row.append((index, step.sampled))
    if open_row:
        rows.append(_row(open_row))
    if not rows:
        raise ConfigError(
            f"{trajectory.env}/{trajectory.task}: no tokens are recorded, so nothing can be trained on; chat endpoints"
            " give none: use a policy local:PATH or vllm:URL#MODEL"
        )
    return tuple(rows)


def _continues(before: Sampled, after: Sampled) -> bool:
    context = before.prompt_ids + before.ids
    return after.prompt_ids[: len(context)] == context


def _row(steps: Sequence[tuple[int, Sampled]]) -> Row:
    tokens: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    versions: list[tuple[str, int, int]] = []
    spans: list[tuple[int, int, int]] = []
    drawn = 0
    for index, sampled in steps:
        new = sampled.prompt_ids[len(tokens) :]
        tokens += new
        mask += [False] * len(new)
        logprobs += [0.0] * len(new)
        spans.append((index, len(tokens), len(tokens) + len(sampled.ids)))
        tokens += sampled.ids
        mask += [True] * len(sampled.ids)
        logprobs += sampled.logprobs
        versions += [(version, start + drawn, end + drawn) for version, start, end in sampled.versions]
        drawn += len(sampled.ids)
    return Row(
        token_ids=tuple(tokens),
        loss_mask=tuple(mask),
        logprobs=tuple(logprobs),
        versions=tuple(versions),
        steps=tuple(spans),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """One row and what its tokens are worth, ready for a learner."""

    row: Row
    advantages: tuple[Floats, ...]
    """[L] for each term of the preset; 0 on tokens that the policy did not draw."""
    counted: tuple[np.ndarray[tuple[int, ...], np.dtype[np.bool_]], ...]
    """[L] for each term: the tokens that its loss is averaged over."""


def example(
    row: Row, advantages: Sequence[Floats], counted: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]
) -> Example:
    """[T] advantages of an episode's steps, for each term -> on every token that was drawn in the step."""
    length = len(row.token_ids)
    spread = [np.zeros(length) for _ in advantages]
    kept = [np.zeros(length, bool) for _ in counted]
    for index, start, end in row.steps:
        for into, of_steps in zip(spread, advantages, strict=True):
            into[start:end] = of_steps[index]
        for into_mask, of_steps_mask in zip(kept, counted, strict=True):
            into_mask[start:end] = of_steps_mask[index]
    return Example(row=row, advantages=tuple(spread), counted=tuple(kept))
