"""Recorded episodes as token rows to train on: exactly the tokens that the engine read and drew, never re-encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.settings.arrays import Floats
from gymcp.types import Sampled, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A contiguous context to train on, [L] tokens; an edited context starts a new row."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """True for the tokens that the policy drew."""
    logprobs: tuple[float, ...]
    """Log-probabilities from the engine; 0 for tokens that are not in the mask."""
    versions: tuple[tuple[str, int, int], ...]
    """(weight version, start, end) spans over the tokens drawn."""
    steps: tuple[tuple[int, int, int], ...]
    """(step, start, end) spans of the tokens that each step of the trajectory drew."""
    inner: tuple[tuple[int, int, int], ...] = ()
    """(step, start, end) spans of the agent's own side answers, each with the step that it came before."""

    @property
    def spans(self) -> tuple[tuple[int, int, int], ...]:
        """Spans of `steps` and `inner` in order of position: every token that was drawn."""
        return tuple(sorted((*self.steps, *self.inner), key=lambda span: span[1])) if self.inner else self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """Tokens of one answer of the model."""

    step: int
    sampled: Sampled
    is_step: bool


def count_stale_tokens(row: Row, version: str) -> int:
    """Drawn tokens of a row that are recorded as drawn by other weights than those of this version."""
    return sum(end - start for drawn_by, start, end in row.versions if drawn_by != version)


def has_logprobs(row: Row) -> bool:
    """True if the engine has recorded log-probabilities; all are 0 in a row that no engine drew."""
    return any(row.logprobs)


def rows_of(trajectory: Trajectory) -> tuple[Row, ...]:
    """The contexts of an episode, in the order of the steps that they first led to.

    An answer whose prompt continues the tokens of an earlier one belongs to the same row; an edited context, and a
    sub-agent's, starts a new row. Steps without tokens are left out, and so are side calls. Raises ConfigError if no
    step has tokens, nor an action that was replaced, because its policy gave none.
    """
    rows: list[list[_Drawn]] = []
    for drawn in _list_drawn(trajectory):
        row = next((row for row in reversed(rows) if _continues(row[-1].sampled, drawn.sampled)), None)
        if row is None:
            rows.append([drawn])
        else:
            row.append(drawn)
    has_replaced = any(answer.replaced and answer.sampled is not None for answer in trajectory.side_answers)
    if not has_replaced and not any(drawn.is_step for row in rows for drawn in row):
        raise ConfigError(
            f"{trajectory.env}/{trajectory.task}: no tokens are recorded, so nothing can be trained on; chat endpoints"
            " give none: use a policy local:PATH or vllm:URL#MODEL"
        )
    return tuple(map(_row, rows))


def _list_drawn(trajectory: Trajectory) -> list[_Drawn]:
    """The answers to train on, in the order of time within each context."""
    last = len(trajectory.steps) - 1  # an answer after the last step has that step's advantage
    found = [
        _Drawn(step=min(answer.step, last), sampled=answer.sampled, is_step=False)
        for answer in trajectory.own_side_answers
        if answer.sampled is not None and last >= 0
    ]
    found += [
        _Drawn(step=index, sampled=step.sampled, is_step=True)
        for index, step in enumerate(trajectory.steps)
        if step.sampled is not None
    ]
    # if answers of one context led to one step, a later answer has a longer prompt
    return sorted(found, key=lambda drawn: (drawn.step, len(drawn.sampled.prompt_ids)))


def _continues(before: Sampled, after: Sampled) -> bool:
    """True if the later prompt begins with all tokens of the earlier step."""
    context = before.prompt_ids + before.ids
    return after.prompt_ids[: len(context)] == context


def _row(answers: Sequence[_Drawn]) -> Row:
    """One row of answers, each of which continues the one before."""
    tokens: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    versions: list[tuple[str, int, int]] = []
    spans: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
    drawn = 0
    for answer in answers:
        sampled = answer.sampled
        new = sampled.prompt_ids[len(tokens) :]
        tokens += new
        mask += [False] * len(new)
        logprobs += [0.0] * len(new)
        spans[answer.is_step].append((answer.step, len(tokens), len(tokens) + len(sampled.ids)))
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
        steps=tuple(spans[True]),
        inner=tuple(spans[False]),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """A row with the advantages of its tokens: one training example of a learner."""

    row: Row
    advantages: tuple[Floats, ...]
    """[L] for each term of the preset; 0 on tokens that the policy did not draw."""
    counted: tuple[np.ndarray[tuple[int, ...], np.dtype[np.bool_]], ...]
    """[L] for each term: the tokens that its loss is averaged over."""
    episode: int | None = None
    """Number of its episode in the batch: the rows of one episode are one sequence. None: the row is a sequence."""
    entropy_weight: Floats | None = None
    """[L]: factor of the loss's entropy bonus; None: 1 everywhere."""


def has_gradient(example: Example, weights: Sequence[float]) -> bool:
    """True if a token that counts has an advantage in a term whose weight is not 0."""
    terms = zip(weights, example.advantages, example.counted, strict=True)
    return any(weight != 0 and bool(advantage[counted].any()) for weight, advantage, counted in terms)


def make_example(
    row: Row,
    advantages: Sequence[Sequence[Floats] | Floats],
    counted: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.bool_]]],
    episode: int | None = None,
    entropy_weight: Floats | None = None,
) -> Example:
    """[T] advantages and flags of an episode's steps, for each term -> the same on every token drawn for the step.

    An advantage is a number, or an array of one for each token of the action; side answers get the mean of these.
    `entropy_weight`: [T] factors of the entropy bonus, likewise.
    """
    length = len(row.token_ids)
    token_advantages = [np.zeros(length) for _ in advantages]
    token_counted = [np.zeros(length, bool) for _ in counted]
    token_weight = None if entropy_weight is None else np.zeros(length)
    for index, start, end in row.spans:
        if token_weight is not None and entropy_weight is not None:
            token_weight[start:end] = entropy_weight[index]
        is_inner = (index, start, end) in row.inner
        for per_token, per_step in zip(token_advantages, advantages, strict=True):
            per_token[start:end] = np.mean(per_step[index]) if is_inner else per_step[index]
        for token_flags, step_flags in zip(token_counted, counted, strict=True):
            token_flags[start:end] = step_flags[index]
    return Example(
        row=row,
        advantages=tuple(token_advantages),
        counted=tuple(token_counted),
        episode=episode,
        entropy_weight=token_weight,
    )
