"""The loss of a micro-batch, as the learner computes it: ragged rows in, a scalar and its statistics out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from itertools import chain, groupby
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gymcp.trainers.learner.forward import TokenValues
from gymcp.trainers.learner.losses import (
    Denominators,
    aggregate,
    importance_ratios,
    kl_estimate,
    policy_loss,
    ratios,
)
from gymcp.trainers.learner.token_rows import Example, Row
from gymcp.trainers.settings.arrays import Floats, Ints
from gymcp.trainers.settings.loss import Loss, SequenceUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCounts:
    """The tokens and sequences of the whole batch, and the length of the sequence that each line is a part of."""

    denominators: Denominators
    lengths: tuple[tuple[int, ...], ...]
    """[B] rows, for each of their lines (`_lines`): tokens that count, of all lines of the line's sequence."""

    def select_lengths(self, places: Sequence[int], like: Tensor) -> Tensor:
        """Lengths for the lines of the rows at these places, with the type and device of `like`."""
        return like.new_tensor([length for b in places for length in self.lengths[b]])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnerBatch:
    """The inputs of one update."""

    examples: Sequence[Example]
    loss: Loss
    weights: Sequence[float]
    """Weight of each term of the preset in the loss."""
    terms: Sequence[SequenceCounts]
    """Counts of the tokens that each term counts."""
    drawn: SequenceCounts
    """Counts of all drawn tokens, over which the KL term is averaged."""
    old: Sequence[Floats] | None
    """[L] for each row: log-probabilities before the first update on this batch. None: of the current weights."""
    reference: Sequence[Floats] | None
    """[L] for each row: log-probabilities under the reference policy. None: the loss has no KL term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStats:
    """Sums over the drawn tokens of one micro-batch or of several."""

    loss: float = 0.0
    """The part of the batch's loss, divided by its denominators already."""
    entropy: float = 0.0
    """In nats."""
    kl: float = 0.0
    """k3 estimates of the divergence of `LearnerBatch.old`, which drew the tokens, from the current policy."""
    kl_reference: float = 0.0
    """k3 estimates of the divergence of the current policy from the reference policy."""
    clipped: float = 0.0
    """Tokens whose ratio lies outside of the clip range."""
    tokens: float = 0.0

    def merge(self, other: LossStats) -> LossStats:
        """The sums over the tokens of both."""
        sums = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return LossStats(**sums)

    def to_tensor(self) -> Tensor:
        """[6] in the order of the fields, for an all-reduce over processes."""
        return torch.tensor(astuple(self), dtype=torch.float64)

    @classmethod
    def from_tensor(cls, values: Tensor) -> Self:
        """The inverse of `to_tensor`."""
        return cls(**dict(zip((field.name for field in fields(cls)), values.tolist(), strict=True)))


def make_batch(
    examples: Sequence[Example],
    loss: Loss,
    weights: Sequence[float],
    *,
    old: Sequence[Floats] | None = None,
    reference: Sequence[Floats] | None = None,
) -> LearnerBatch:
    """The batch of these examples, with what its losses are divided by."""
    masks = [np.array(example.row.loss_mask, bool) for example in examples]
    return LearnerBatch(
        examples=examples,
        loss=loss,
        weights=weights,
        terms=[
            count_sequences(examples, [example.counted[term] for example in examples], loss.sequence)
            for term in range(len(weights))
        ],
        drawn=count_sequences(examples, masks, loss.sequence),
        old=old,
        reference=reference,
    )


def batch_loss(batch: LearnerBatch, places: Sequence[int], values: TokenValues) -> tuple[Tensor, LossStats]:
    """The part of the batch's loss that the rows at `places` contribute, and its statistics.

    `values` are those of the drawn tokens of these rows, under the current weights.
    """
    examples = [batch.examples[b] for b in places]
    rows = [example.row for example in examples]
    loss, drawn = batch.loss, _DrawnTokens(rows, batch.loss.sequence)
    new = drawn.pad(values.logprobs)
    mask = drawn.mask(new)
    old = new.detach() if batch.old is None else drawn.select([batch.old[b] for b in places], new)
    rollout = None
    if loss.weight is not None or loss.decoupled:
        rollout = drawn.select([np.array(row.logprobs) for row in rows], new)
    part = new.new_zeros(())
    for term, (weight, whole) in enumerate(zip(batch.weights, batch.terms, strict=True)):
        advantages = drawn.select([example.advantages[term] for example in examples], new)
        counted = drawn.select([example.counted[term] for example in examples], new)
        part = part + weight * policy_loss(
            loss,
            new,
            old,
            advantages,
            counted,
            rollout=rollout,
            denominators=whole.denominators,
            lengths=whole.select_lengths(places, new),
        )
    reference = None
    if batch.reference is not None:
        reference = drawn.select([batch.reference[b] for b in places], new)
        divergence, lengths = kl_estimate(new, reference), batch.drawn.select_lengths(places, new)
        part = part + loss.kl * aggregate(loss, divergence, mask, batch.drawn.denominators, lengths)
    if loss.entropy:
        bonus, lengths = drawn.pad(values.entropy), batch.drawn.select_lengths(places, new)
        factors = [
            np.ones(len(each.row.token_ids)) if each.entropy_weight is None else each.entropy_weight
            for each in examples
        ]
        bonus = bonus * drawn.select(factors, new)
        part = part - loss.entropy * aggregate(loss, bonus, mask, batch.drawn.denominators, lengths)
    with torch.no_grad():
        stats = measure_loss(loss, part, new, old, mask, values.entropy, reference)
    return part, stats


def measure_loss(
    loss: Loss,
    part: Tensor,
    new: Tensor,
    old: Tensor,
    mask: Tensor,
    entropy: Tensor,
    reference: Tensor | None = None,
) -> LossStats:
    """Statistics of a part of the loss. new, old, mask, reference: [B, K]; entropy: [number of drawn tokens].

    The tokens were drawn from `old`, so a divergence of the new policy weighs each by its ratio: no estimate is biased.
    """
    ratio = ratios(loss, new, old, mask)
    outside = (ratio < 1 - loss.clip_low) | (ratio > 1 + loss.clip_high)
    from_reference = torch.zeros_like(new)
    if reference is not None:
        from_reference = importance_ratios(new, old) * kl_estimate(new, reference)
    return LossStats(
        loss=float(part),
        entropy=float(entropy.sum()),
        kl=float((kl_estimate(old, new) * mask).sum()),
        kl_reference=float((from_reference * mask).sum()),
        clipped=float((outside * mask).sum()),
        tokens=float(mask.sum()),
    )


def count_sequences(
    examples: Sequence[Example], counted: Sequence[np.ndarray[Any, Any]], unit: SequenceUnit
) -> SequenceCounts:
    """[L] flags for each row -> the counts of the flagged tokens; an episode or step without one is no sequence."""
    # a row without a number is an episode by itself; numbers are not negative
    episodes = [-1 - b if each.episode is None else each.episode for b, each in enumerate(examples)]
    lines = [
        [((episode, step), int(flags[indices].sum())) for step, indices in _lines(each.row, unit)]
        for episode, each, flags in zip(episodes, examples, counted, strict=True)
    ]
    by_sequence: Counter[tuple[int, int | None]] = Counter()
    for sequence, count in chain.from_iterable(lines):
        by_sequence[sequence] += count
    tokens, sequences = by_sequence.total(), sum(length > 0 for length in by_sequence.values())
    return SequenceCounts(
        denominators=Denominators(tokens=float(tokens), sequences=float(sequences)),
        lengths=tuple(tuple(by_sequence[sequence] for sequence, _ in of_row) for of_row in lines),
    )


def _lines(row: Row, unit: SequenceUnit) -> list[tuple[int | None, Ints]]:
    """The parts of a row's drawn tokens that have one ratio in gspo: all of them, or those drawn for each step.

    A step's number and its tokens, which are those of its action and of the agent's side answers that led to it.
    """
    if unit == "episode":
        return [(None, np.flatnonzero(row.loss_mask))]
    by_step = groupby(row.spans, key=lambda span: span[0])
    return [(step, np.concatenate([np.arange(start, end) for _, start, end in spans])) for step, spans in by_step]


class _DrawnTokens:
    """The drawn tokens of some rows, as a rectangle [B, K] in which shorter ones are padded with zeros: one line for
    each row, or for each step of each row (`_lines`)."""

    def __init__(self, rows: Sequence[Row], unit: SequenceUnit) -> None:
        self._drawn = [(b, indices) for b, row in enumerate(rows) for _, indices in _lines(row, unit)]
        self._width = max((len(indices) for _, indices in self._drawn), default=0)

    def pad(self, flat: Tensor) -> Tensor:
        """[values of all drawn tokens, row after row] -> [B, K]."""
        parts = torch.split(flat, [len(indices) for _, indices in self._drawn])
        return torch.stack([torch.nn.functional.pad(part, (0, self._width - len(part))) for part in parts])

    def select(self, columns: Sequence[np.ndarray[Any, Any]], like: Tensor) -> Tensor:
        """[L] for each row -> [B, K]: the values at the drawn tokens, with the type and device of `like`."""
        table = np.zeros((len(self._drawn), self._width))
        for line, (b, indices) in enumerate(self._drawn):
            table[line, : len(indices)] = columns[b][indices]
        return torch.as_tensor(table, dtype=like.dtype, device=like.device)

    def mask(self, like: Tensor) -> Tensor:
        """[B, K]: 1 on drawn tokens, 0 on padding."""
        lengths = torch.tensor([len(indices) for _, indices in self._drawn], device=like.device)
        return (torch.arange(self._width, device=like.device)[None, :] < lengths[:, None]).to(like.dtype)
