"""The loss of preferences (DPO), on whole answers or on single steps."""

from __future__ import annotations

import torch
from torch import Tensor


def sum_logprobs(logprobs: Tensor, mask: Tensor) -> Tensor:
    """[P, L] log-probabilities of tokens, [P, L] mask -> [P]: log-probability of what the mask covers.

    The mask decides what is compared. The tokens of one step give the step-wise form of `preference_loss`: what stands
    before the step is the same in both members of a pair (`gymcp.trainers.find_step_pairs`). All drawn tokens of an
    answer give the form of whole answers.
    """
    return (logprobs * mask).sum(-1)


def preference_loss(
    chosen: Tensor,
    rejected: Tensor,
    *,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    beta: float = 0.1,
    weights: Tensor | None = None,
) -> Tensor:
    """[P] log-probabilities of both members of each pair -> a scalar: the mean of -log sigmoid(beta (c - r)).

    c is log p - log p_ref of the better member, r that of the worse one; the references have no gradient. With weights
    [P] the mean is weighted, for example by the margins of pairs. Without a pair the loss is 0, with a gradient of 0.

    Source: DPO, arXiv:2305.18290; its step-wise form as in TP-LLaMA, arXiv:2406.07115, which has this loss on steps.
    """
    gain = (chosen - reference_chosen.detach()) - (rejected - reference_rejected.detach())
    losses = -torch.nn.functional.logsigmoid(beta * gain)
    counted = torch.ones_like(losses) if weights is None else weights.detach()
    return (losses * counted).sum() / counted.sum().clamp(min=torch.finfo(losses.dtype).tiny)
