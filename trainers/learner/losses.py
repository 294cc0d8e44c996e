"""What is minimised, given advantages per token: clipped ratios, their aggregation and corrections.

All are functions of log-probabilities [B, L]: `new` under the weights being trained, `old` under those at the start of
the update, `rollout` as the engine recorded them. `mask` [B, L] is 1 on tokens that the policy drew. What a loss
is divided by is counted over the whole batch, also where it comes in pieces: give the pieces the same `Denominators`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gymcp.trainers.settings.loss import BandWeight, Loss, TruncatedWeight

_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Of the whole batch, of which a micro-batch is a part."""

    tokens: float
    """Tokens that the policy drew."""
    sequences: float

    @classmethod
    def of(cls, mask: Tensor) -> Denominators:
        return cls(tokens=float(mask.sum()), sequences=float(mask.shape[0]))


def policy_loss(
    loss: Loss,
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    rollout: Tensor | None = None,
    denominators: Denominators | None = None,
) -> Tensor:
    """[B, L] each -> a scalar: the part of the batch's loss that these rows contribute."""
    if loss.kind == "likelihood":
        return aggregated(loss, -advantages * new, mask, denominators)
    ratio = ratios(loss, new, old, mask)
    if loss.kind == "cispo":
        weight = ratio.detach().clamp(1 - loss.clip_low, 1 + loss.clip_high)
        each = -weight * advantages * new
    else:
        each = _clipped(loss, ratio, advantages)
    if rollout is not None:
        each = each * _correction(loss, old, rollout, mask)
    return aggregated(loss, each, mask, denominators)


def ratios(loss: Loss, new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """[B, L]: what is clipped: of each token, or, for gspo, of its sequence."""
    change = (new - old).clamp(-_LOG_RATIO, _LOG_RATIO)
    if loss.kind != "gspo":
        return torch.exp(change)
    mean = ((new - old) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return torch.exp((new - new.detach() + mean.detach()).clamp(max=_LOG_RATIO / 2))


def _clipped(loss: Loss, ratio: Tensor, advantages: Tensor) -> Tensor:
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
    worst = torch.maximum(plain, clipped)
    if loss.dual_clip is None or loss.kind == "gspo":
        return worst
    return torch.where(advantages < 0, torch.minimum(worst, -advantages * loss.dual_clip), worst)


def _correction(loss: Loss, old: Tensor, rollout: Tensor, mask: Tensor) -> Tensor:
    """[B, L], without gradient."""
    change = (old - rollout).detach()
    if loss.decoupled:
        behaviour = torch.exp(change.clamp(-_LOG_RATIO, _LOG_RATIO))
        return torch.where(behaviour <= loss.behaviour_cap, behaviour, torch.zeros_like(behaviour))
    if loss.weight is None:
        return torch.ones_like(change)
    return importance_weights(loss.weight, change, mask)


def importance_weights(rule: TruncatedWeight | BandWeight, change: Tensor, mask: Tensor) -> Tensor:
    """[B, L] log p_old - log p_rollout -> [B, L] weights; of a sequence its product, one for all of its tokens."""
    if isinstance(rule, BandWeight):
        weight = torch.exp(change.clamp(-_LOG_RATIO, _LOG_RATIO))
        return torch.where((weight >= rule.low) & (weight <= rule.high), weight, torch.zeros_like(weight))
    if rule.level == "sequence":
        change = (change * mask).sum(-1, keepdim=True).expand_as(change)
    return torch.exp(change.clamp(-_LOG_RATIO, _LOG_RATIO)).clamp(max=rule.cap)


def aggregated(loss: Loss, each: Tensor, mask: Tensor, denominators: Denominators | None = None) -> Tensor:
    """[B, L] -> a scalar. A sequence without a token of its own counts as a sequence and adds nothing."""
    whole = denominators or Denominators.of(mask)
    masked = each * mask
    match "seq-mean-token-mean" if loss.kind == "gspo" else loss.aggregation:
        case "token-mean":
            return masked.sum() / max(whole.tokens, 1.0)
        case "seq-mean-token-sum":
            return masked.sum() / max(whole.sequences, 1.0)
        case "seq-mean-token-mean":
            return (masked.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / max(whole.sequences, 1.0)
        case _:
            return masked.sum() / (max(whole.sequences, 1.0) * float(loss.constant_length or 1))


def kl_estimate(new: Tensor, reference: Tensor) -> Tensor:
    """[B, L] -> [B, L]: k3 = exp(-k1) - 1 + k1 with k1 = log p - log p_ref, within +-10; never negative.

    Source: John Schulman, "Approximating KL divergence"; verl's low_var_kl.
    """
    difference = (new - reference).clamp(-_LOG_RATIO, _LOG_RATIO)
    return (torch.exp(-difference) - 1 + difference).clamp(-10.0, 10.0)
