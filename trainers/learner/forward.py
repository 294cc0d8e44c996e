"""Log-probabilities of the tokens that were drawn, under the weights being trained, at the least cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from gymcp.errors import ConfigError
from gymcp.types import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Rows that are computed together."""

    rows: tuple[int, ...]
    """Places in the batch."""
    prefix: int
    """Tokens that all of them begin with, which are encoded once; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenValues:
    """[K] each, for the K tokens of a micro-batch that were drawn, row after row."""

    logprobs: Tensor
    """Of the tokens, under the distribution they were drawn from, temperature included."""
    entropy: Tensor
    """Of that distribution, in nats, without gradient."""


class Scorer(torch.nn.Module):
    """What is asked of a model, as one `forward`: what wraps a module (DDP, FSDP) acts before and after that."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises ConfigError for a head of its own kind."""
        super().__init__()
        if not check_head(model):
            raise ConfigError(
                f"learner: {type(model).__name__} scales or caps its logits; models whose logits are their output"
                " embeddings applied to the last hidden state can be trained (Qwen, Llama, Mistral ...)"
            )
        self.model = model
        # what accelerate looks at to wrap layers and the embeddings, which may be one
        self._no_split_modules = model._no_split_modules
        self.get_input_embeddings = model.get_input_embeddings
        self.get_output_embeddings = model.get_output_embeddings
        self.tie_weights = model.tie_weights

    def forward(
        self, rows: Sequence[Row], *, prefix: int = 0, temperature: float = 1.0, features: bool = False
    ) -> tuple[Tensor, ...]:
        """[B] rows -> [K] log-probabilities and [K] entropies of their drawn tokens, or [S, H] features of their steps.

        Tensors in a tuple: no wrapper looks into a record.
        """
        if features:
            return (step_features(self.model, rows, prefix=prefix),)
        values = token_values(self.model, rows, prefix=prefix, temperature=temperature)
        return values.logprobs, values.entropy


def plan(rows: Sequence[Row], groups: Sequence[int], *, tokens: int, share: bool) -> list[MicroBatch]:
    """[B] rows and the number of the task of each -> micro-batches of at most `tokens`, padding included.

    Rows of one task that begin with the same tokens share them, where `share` says so and that is less work; the rest
    are put together by length. One row longer than `tokens` is a micro-batch of its own.
    """
    batches: list[MicroBatch] = []
    loose: list[int] = []
    by_group: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        by_group.setdefault(group, []).append(place)
    for members in by_group.values():
        prefix = common_prefix([rows[place] for place in members]) if share and len(members) > 1 else 0
        longest = max(len(rows[place].token_ids) for place in members)
        if prefix * (len(members) - 1) < longest:  # little to save, and the rows could not be put with others
            loose += members
        else:
            batches += _packed(rows, members, prefix, tokens)
    return batches + list(_packed(rows, loose, 0, tokens))


def _packed(rows: Sequence[Row], members: Sequence[int], prefix: int, tokens: int) -> Iterator[MicroBatch]:
    chosen: list[int] = []
    for place in sorted(members, key=lambda place: -len(rows[place].token_ids)):
        longest = len(rows[chosen[0]].token_ids) if chosen else 0
        if chosen and prefix + (len(chosen) + 1) * (longest - prefix) > tokens:
            yield MicroBatch(rows=tuple(chosen), prefix=prefix)
            chosen = []
        chosen.append(place)
    if chosen:
        yield MicroBatch(rows=tuple(chosen), prefix=prefix)


def common_prefix(rows: Sequence[Row]) -> int:
    """Tokens that all rows begin with, less the one that predicts the first token drawn in any of them."""
    first, *others = (row.token_ids for row in rows)
    length = min(row.steps[0][1] for row in rows) - 1
    for other in others:
        length = next((i for i in range(length) if first[i] != other[i]), length)
    return max(length, 0)


def token_values(
    model: PreTrainedModel, rows: Sequence[Row], *, prefix: int = 0, temperature: float = 1.0
) -> TokenValues:
    """[B] rows -> their drawn tokens' values; gradients flow to the weights, also through what is shared."""
    drawn = _places(rows, [range(start, end) for row in rows for _, start, end in row.steps])
    hidden = _before(model, rows, drawn, prefix)
    ids = torch.tensor([rows[b].token_ids[t] for b, t in drawn], device=model.device, dtype=torch.long)
    logits = _logits(model, hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    distribution = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(-1)
    return TokenValues(logprobs=-torch.nn.functional.nll_loss(distribution, ids, reduction="none"), entropy=entropy)


@torch.no_grad()
def step_features(model: PreTrainedModel, rows: Sequence[Row], *, prefix: int = 0) -> Tensor:
    """[B] rows -> [S, H] for their S steps, row after row: the last hidden state before the step's first token."""
    return _before(model, rows, _places(rows, [[start] for row in rows for _, start, _ in row.steps]), prefix).float()


def _places(rows: Sequence[Row], chosen: Sequence[Iterable[int]]) -> list[tuple[int, int]]:
    """(row, token) for the tokens that are chosen in each step of each row."""
    of_step = [b for b, row in enumerate(rows) for _ in row.steps]
    return [(b, t) for b, tokens in zip(of_step, chosen, strict=True) for t in tokens]


def _before(model: PreTrainedModel, rows: Sequence[Row], places: Sequence[tuple[int, int]], prefix: int) -> Tensor:
    """[K] places -> [K, H]: what the model has when it is about to write the tokens there."""
    device = model.device
    tails = [row.token_ids[prefix:] for row in rows]
    longest = max(len(tail) for tail in tails)
    ids = torch.tensor([tail + (0,) * (longest - len(tail)) for tail in tails], device=device)
    options: dict[str, Any] = {"use_cache": False}
    if prefix:
        options = {"use_cache": True, "past_key_values": _shared(model, rows[0].token_ids[:prefix], len(rows))}
    if any(len(tail) < longest for tail in tails):
        seen = [[1] * (prefix + len(tail)) + [0] * (longest - len(tail)) for tail in tails]
        options["attention_mask"] = torch.tensor(seen, device=device)
    positions = torch.arange(prefix, prefix + longest, device=device).expand(len(rows), -1)
    hidden = _hidden(model, input_ids=ids, position_ids=positions, **options)
    if not places:
        return hidden[:0, 0]
    which, where = torch.tensor(places, device=device).T
    return hidden[which, where - prefix - 1]


def _shared(model: PreTrainedModel, prefix: tuple[int, ...], copies: int) -> DynamicCache:
    """The keys and values of the prefix, computed once and seen by every row."""
    alone = DynamicCache(config=model.config)
    ids = torch.tensor([prefix], device=model.device)
    _hidden(model, input_ids=ids, past_key_values=alone, use_cache=True)
    layers: list[Any] = list(alone.layers)
    pairs = [(layer.keys.expand(copies, -1, -1, -1), layer.values.expand(copies, -1, -1, -1)) for layer in layers]
    return DynamicCache(pairs)


def _hidden(model: Any, **inputs: Any) -> Tensor:
    last: Tensor = model.get_decoder()(**inputs).last_hidden_state
    return last


def _logits(model: Any, hidden: Tensor) -> Tensor:
    logits: Tensor = model.get_output_embeddings()(hidden)
    return logits


def check_head(model: PreTrainedModel, *, tolerance: float = 1e-3) -> bool:
    """True where the model's logits are its output embeddings applied to the last hidden state, and nothing more."""
    ids = torch.arange(2, 10, device=model.device)[None, :] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        whole = model(input_ids=ids).logits
        parts = _logits(model, _hidden(model, input_ids=ids))
    return bool((whole - parts).abs().max() <= tolerance * max(1.0, float(whole.abs().max())))
