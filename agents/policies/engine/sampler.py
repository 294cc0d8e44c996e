"""Sampling of tokens from logits, each with its log-probability under the distribution before top-k and top-p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gymcp.errors import ConfigError
from gymcp.types import Sampling

GREEDY_BELOW = 1e-5
"""Temperature below which the likeliest token is taken: dividing by a smaller one would overflow float32."""
MAX_UNIFORM = 1.0 - 2.0**-22
"""Largest random number used: this close to 1 it still selects a token of positive probability in float32."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token per row, [B]."""

    ids: list[int]
    logprobs: list[float]
    """Log-probability of each token; NaN if the row's logits are not numbers."""


def check_sampling(sampling: Sampling) -> None:
    """Raises ConfigError for a setting that does not define a distribution."""
    if sampling.max_tokens < 1:
        raise ConfigError(f"sampling: max_tokens is {sampling.max_tokens}; it has to be 1 or more")
    if not 0.0 <= sampling.temperature < float("inf"):
        raise ConfigError(f"sampling: temperature is {sampling.temperature}; it has to be 0 (greedy) or more")
    if not 0.0 < sampling.top_p <= 1.0:
        raise ConfigError(f"sampling: top_p is {sampling.top_p}; it has to be above 0 and at most 1 (no limit)")
    if sampling.top_k < 0:
        raise ConfigError(f"sampling: top_k is {sampling.top_k}; it has to be 0 (no limit) or more")
    if "" in sampling.stop:
        raise ConfigError("sampling: a stop text is empty; leave it out")


def draw(logits: torch.Tensor, rules: Sequence[Sampling], uniforms: Sequence[float]) -> Drawn:
    """Logits [B, V] -> one token per row, by inverting the cumulative distribution at a number in [0, 1) per row.

    Tokens are ordered by id, not by probability. So the token does not change if two nearly equal logits change their
    order, as happens with the rounding of another batch.
    """
    scores = logits.float()
    device = scores.device
    if any(rule.temperature != 1.0 and rule.temperature >= GREEDY_BELOW for rule in rules):
        divisors = [rule.temperature if rule.temperature >= GREEDY_BELOW else 1.0 for rule in rules]
        scores = scores / torch.tensor(divisors, device=device)[:, None]
    logprobs = torch.log_softmax(scores, dim=-1)
    greedy = [rule.temperature < GREEDY_BELOW for rule in rules]
    if all(greedy):
        ids = logprobs.argmax(dim=-1, keepdim=True)
    else:
        cumulative = _restrict(logprobs.exp(), rules).cumsum(dim=-1)
        capped = torch.tensor([min(number, MAX_UNIFORM) for number in uniforms], device=device)
        ids = torch.searchsorted(cumulative, capped[:, None] * cumulative[:, -1:], right=True)
        if any(greedy):
            ids = torch.where(torch.tensor(greedy, device=device)[:, None], logprobs.argmax(dim=-1, keepdim=True), ids)
        ids = ids.clamp_(max=logits.shape[-1] - 1)  # for rows of NaN the index is past the end
    chosen = logprobs.gather(-1, ids)
    return Drawn(ids=ids[:, 0].tolist(), logprobs=chosen[:, 0].tolist())


def _restrict(probs: torch.Tensor, rules: Sequence[Sampling]) -> torch.Tensor:
    """`probs` [B, V] with 0 for tokens that top-k excludes, and then for those that top-p excludes; not normalised."""
    vocabulary = probs.shape[-1]
    limited = [row for row, rule in enumerate(rules) if rule.top_p < 1.0 or 0 < rule.top_k < vocabulary]
    if not limited:
        return probs
    rows = torch.tensor(limited, device=probs.device)
    ranked, order = probs[rows].sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([rules[row].top_k or vocabulary for row in limited], device=probs.device)
    ranked = ranked.masked_fill(torch.arange(vocabulary, device=probs.device) >= top_k[:, None], 0.0)
    top_p = torch.tensor([rules[row].top_p for row in limited], device=probs.device)[:, None]
    before = ranked.cumsum(dim=-1) - ranked
    ranked = ranked.masked_fill(before >= top_p * ranked.sum(dim=-1, keepdim=True), 0.0)
    return probs.index_copy(0, rows, torch.zeros_like(ranked).scatter_(-1, order, ranked))
