"""Policy losses, given advantages per token: clipped ratios, their aggregation, and corrections.

All functions take log-probabilities [B, L]: `new` under the weights being trained, `old` under those at the start of
the update, `rollout` as the engine recorded them. `mask` [B, L] is 1 on tokens that the policy drew. A loss is divided
by counts over the whole batch, even if it is computed in pieces: give all pieces the same `Denominators`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gymcp.trainers.settings.loss import BandWeight, Loss, TruncatedWeight

_MAX_LOG_RATIO = 20.0
"""Bound on the absolute value of a log-ratio (nats), so that its exponential stays finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Counts over the whole batch, of which a micro-batch is a part."""

    tokens: float
    """Tokens that the loss is averaged over."""
    sequences: float
    """Sequences that the loss is averaged over: all rows (`count_all_rows`), or the episodes with a token that counts
    (`micro_batch_loss.count_sequences`)."""


def count_all_rows(mask: Tensor) -> Denominators:
    """[B, L] -> the tokens of the mask, and B sequences: a row without a token counts as well."""
    return Denominators(tokens=float(mask.sum()), sequences=float(mask.shape[0]))


def policy_loss(
    loss: Loss,
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    rollout: Tensor | None = None,
    denominators: Denominators | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """[B, L] each -> a scalar: the part of the batch's loss that these rows contribute. `lengths`: see `aggregate`."""
    if loss.kind == "likelihood":
        return aggregate(loss, -advantages * new, mask, denominators, lengths)
    ratio = ratios(loss, new, old, mask)
    if loss.kind == "cispo":
        weight = ratio.detach().clamp(1 - loss.clip_low, 1 + loss.clip_high)
        token_losses = -weight * advantages * new
    elif loss.kind == "sapo":
        token_losses = -advantages * _soften(loss, ratio, advantages)
    else:
        token_losses = _clip(loss, ratio, advantages)
    if rollout is not None:
        token_losses = token_losses * _rollout_weights(loss, old, rollout, mask)
    return aggregate(loss, token_losses, mask, denominators, lengths)


def ratios(loss: Loss, new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """[B, L]: the probability ratios that the loss clips: one per token, or for gspo one per line: a row or a step."""
    if loss.kind != "gspo":
        return importance_ratios(new, old)
    mean = ((new - old) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return torch.exp((new - new.detach() + mean.detach()).clamp(max=_MAX_LOG_RATIO / 2))


def importance_ratios(new: Tensor, old: Tensor) -> Tensor:
    """[B, L]: p_new / p_old of each token."""
    return torch.exp((new - old).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))


def _soften(loss: Loss, ratio: Tensor, advantages: Tensor) -> Tensor:
    """[B, L]: (4 / tau) sigmoid(tau (r - 1)), whose slope at r = 1 is 1 and fades on both sides.

    Source: SAPO, arXiv:2511.20347; verl, compute_policy_loss_sapo, which averages over tokens, then over sequences.
    """
    sharpness = torch.where(advantages > 0, loss.sharpness_up, loss.sharpness_down)
    return 4 / sharpness * torch.sigmoid(sharpness * (ratio - 1))


def _clip(loss: Loss, ratio: Tensor, advantages: Tensor) -> Tensor:
    """[B, L]: PPO's pessimistic loss, with the dual clip for negative advantages if the loss has one."""
    plain = -advantages * ratio
    if loss.keep_clipped_gradient and loss.kind == "ppo":
        ceiling = (1 + loss.clip_high) * ratio / ratio.detach()
        clipped = -advantages * torch.minimum(ratio.clamp(min=1 - loss.clip_low), ceiling)
    else:
        clipped = -advantages * ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
    worst = torch.maximum(plain, clipped)
    if loss.dual_clip is None or loss.kind == "gspo":
        return worst
    return torch.where(advantages < 0, torch.minimum(worst, -advantages * loss.dual_clip), worst)


def _rollout_weights(loss: Loss, old: Tensor, rollout: Tensor, mask: Tensor) -> Tensor:
    """[B, L], without gradient: corrections for tokens that the engine drew with other probabilities than `old`."""
    change = (old - rollout).detach()
    if loss.decoupled:
        behaviour = torch.exp(change.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))
        return torch.where(behaviour <= loss.behaviour_cap, behaviour, torch.zeros_like(behaviour))
    if loss.weight is None:
        return torch.ones_like(change)
    return importance_weights(loss.weight, change, mask)


def importance_weights(rule: TruncatedWeight | BandWeight, change: Tensor, mask: Tensor) -> Tensor:
    """[B, L] log p_old - log p_rollout -> [B, L] weights.

    A rule on the level of sequences gives all tokens of a sequence the same weight: the product over its tokens.
    """
    if isinstance(rule, BandWeight):
        weight = torch.exp(change.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))
        return torch.where((weight >= rule.low) & (weight <= rule.high), weight, torch.zeros_like(weight))
    if rule.level == "sequence":
        change = (change * mask).sum(-1, keepdim=True).expand_as(change)
    return torch.exp(change.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)).clamp(max=rule.cap)


def aggregate(
    loss: Loss,
    token_losses: Tensor,
    mask: Tensor,
    denominators: Denominators | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """[B, L] -> a scalar: the masked losses, summed and divided as `loss.aggregation` says.

    `denominators` count tokens and sequences of the whole batch. None: those of these rows, each of which is then a
    sequence, even without a token (`count_all_rows`). Training gives denominators that leave such rows out. Either way
    a row without a token adds nothing to the sum. `lengths` [B]: tokens of the sequence that each row is a part of;
    None: each row is a whole sequence.
    """
    whole = denominators or count_all_rows(mask)
    masked = token_losses * mask
    match loss.averaging:
        case "token-mean":
            return masked.sum() / max(whole.tokens, 1.0)
        case "seq-mean-token-sum":
            return masked.sum() / max(whole.sequences, 1.0)
        case "seq-mean-token-mean":
            own = mask.sum(-1) if lengths is None else lengths
            return (masked.sum(-1) / own.clamp(min=1)).sum() / max(whole.sequences, 1.0)
        case _:
            return masked.sum() / (max(whole.sequences, 1.0) * float(loss.constant_length or 1))


def kl_estimate(drawn_from: Tensor, other: Tensor) -> Tensor:
    """[B, L] -> [B, L]: k3 = exp(-k1) - 1 + k1 with k1 = log p - log q, at most 10; never negative.

    Its mean over tokens drawn from p is KL(p || q): the first argument is the policy that drew the tokens.

    Source: John Schulman, "Approximating KL divergence"; verl's low_var_kl.
    """
    difference = (drawn_from - other).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return (torch.exp(-difference) - 1 + difference).clamp(-10.0, 10.0)
