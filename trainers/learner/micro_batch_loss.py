"""The loss of a part of a batch, as the learner computes it: ragged rows in, a scalar and what was seen out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gymcp.trainers.learner.forward import TokenValues
from gymcp.trainers.learner.losses import Denominators, aggregated, kl_estimate, policy_loss, ratios
from gymcp.trainers.learner.token_rows import Example
from gymcp.trainers.settings.arrays import Floats
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnerBatch:
    """What an update is computed from."""

    examples: Sequence[Example]
    loss: Loss
    weights: Sequence[float]
    totals: Sequence[Denominators]
    old: Sequence[Floats] | None
    reference: Sequence[Floats] | None


def batch_loss(batch: LearnerBatch, places: Sequence[int], values: TokenValues, seen: Sums) -> Tensor:
    """The part of the batch's loss that the rows at `places` contribute, given what the model says of their tokens."""
    chosen = [batch.examples[b] for b in places]
    rows = [each.row for each in chosen]
    loss, shape = batch.loss, _Ragged(rows)
    new = shape.square(values.logprobs)
    before = new.detach() if batch.old is None else shape.taken([batch.old[b] for b in places], new)
    corrected = None
    if loss.weight is not None or loss.decoupled:
        corrected = shape.taken([np.array(row.logprobs) for row in rows], new)
    part = new.new_zeros(())
    for term, (weight, whole) in enumerate(zip(batch.weights, batch.totals, strict=True)):
        advantage = shape.taken([each.advantages[term] for each in chosen], new)
        mask = shape.taken([each.counted[term] for each in chosen], new)
        part = part + weight * policy_loss(loss, new, before, advantage, mask, rollout=corrected, denominators=whole)
    divergence = None
    if batch.reference is not None:
        divergence = kl_estimate(new, shape.taken([batch.reference[b] for b in places], new))
        part = part + loss.kl * aggregated(loss, divergence, shape.mask(new), batch.totals[0])
    with torch.no_grad():
        seen.add(loss, part, new, before, shape.mask(new), values.entropy)
        if divergence is not None:
            seen.kl_reference += float((divergence * shape.mask(new)).sum())
    return part


def denominators_of(examples: Sequence[Example], term: int) -> Denominators:
    counted = [int(each.counted[term].sum()) for each in examples]
    return Denominators(tokens=float(sum(counted)), sequences=float(sum(count > 0 for count in counted)))


class _Ragged:
    """Drawn tokens of rows, as a rectangle [B, K] with the shorter rows padded."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._drawn = [np.flatnonzero(row.loss_mask) for row in rows]
        self._width = max((len(each) for each in self._drawn), default=0)

    def square(self, flat: Tensor) -> Tensor:
        parts = torch.split(flat, [len(each) for each in self._drawn])
        return torch.stack([torch.nn.functional.pad(part, (0, self._width - len(part))) for part in parts])

    def taken(self, columns: Sequence[np.ndarray[Any, Any]], like: Tensor) -> Tensor:
        table = np.zeros((len(columns), self._width))
        for b, (column, drawn) in enumerate(zip(columns, self._drawn, strict=True)):
            table[b, : len(drawn)] = column[drawn]
        return torch.as_tensor(table, dtype=like.dtype, device=like.device)

    def mask(self, like: Tensor) -> Tensor:
        lengths = torch.tensor([len(each) for each in self._drawn], device=like.device)
        return (torch.arange(self._width, device=like.device)[None, :] < lengths[:, None]).to(like.dtype)


class Sums:
    """Sums over the micro-batches of an update."""

    def __init__(self) -> None:
        self.loss = self.entropy = self.kl = self.kl_reference = self.clipped = 0.0
        self.tokens = 0

    def values(self) -> Tensor:
        """All of them, to be added to those of other processes."""
        return torch.tensor(list(vars(self).values()), dtype=torch.float64)

    @classmethod
    def of(cls, values: Tensor) -> Sums:
        found = cls()
        vars(found).update(zip(vars(found), values.tolist(), strict=True))
        return found

    def join(self, other: Sums) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def add(self, loss: Loss, part: Tensor, new: Tensor, old: Tensor, mask: Tensor, entropy: Tensor) -> None:
        ratio = ratios(loss, new, old, mask)
        outside = (ratio < 1 - loss.clip_low) | (ratio > 1 + loss.clip_high)
        self.loss += float(part)
        self.entropy += float(entropy.sum())
        self.kl += float((kl_estimate(new, old) * mask).sum())
        self.clipped += float((outside * mask).sum())
        self.tokens += int(mask.sum())
