"""Log-probabilities of drawn tokens under the weights being trained, with shared prompt prefixes encoded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from gymcp.errors import ConfigError
from gymcp.trainers.learner.token_rows import Row

FeaturePlaces = Literal["step", "step end", "token"]
"""step: before each step's first token. step end: at each step's last token. token: before every token of each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Rows that go through the model in one forward pass."""

    rows: tuple[int, ...]
    """Indices of the rows in the batch."""
    prefix: int
    """Number of leading tokens that all rows share and that are encoded once; 0: none are shared."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenValues:
    """[K] each, for the K drawn tokens of a micro-batch, row after row."""

    logprobs: Tensor
    """Log-probabilities (nats) under the distribution that the tokens were drawn from, temperature included."""
    entropy: Tensor
    """Entropy of that distribution (nats), without gradient unless it was asked for."""


class Scorer(torch.nn.Module):
    """All computations that the learner asks of a model, as one `forward`, which DDP and FSDP can wrap."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises ConfigError for a model that changes the logits of its output embeddings."""
        super().__init__()
        if not has_plain_logits(model):
            raise ConfigError(
                f"learner: {type(model).__name__} scales or caps its logits; models whose logits are their output"
                " embeddings applied to the last hidden state can be trained (Qwen, Llama, Mistral ...)"
            )
        self.model = model
        # accelerate reads these to wrap layers and embeddings; input and output embeddings may be tied
        self._no_split_modules = model._no_split_modules
        self.get_input_embeddings = model.get_input_embeddings
        self.get_output_embeddings = model.get_output_embeddings
        self.tie_weights = model.tie_weights

    def forward(
        self,
        rows: Sequence[Row],
        *,
        prefix: int = 0,
        temperature: float = 1.0,
        features: FeaturePlaces | None = None,
        entropy_gradient: bool = False,
    ) -> tuple[Tensor, ...]:
        """[B] rows -> [K] log-probabilities and [K] entropies of their drawn tokens, or the features at these places.

        Returns a tuple of tensors, because DDP and FSDP do not find tensors inside a record.
        """
        if features is not None:
            return (hidden_features(self.model, rows, features, prefix=prefix),)
        values = token_values(
            self.model, rows, prefix=prefix, temperature=temperature, entropy_gradient=entropy_gradient
        )
        return values.logprobs, values.entropy


def plan_micro_batches(rows: Sequence[Row], groups: Sequence[int], *, tokens: int, share: bool) -> list[MicroBatch]:
    """[B] rows and their task numbers -> micro-batches of at most `tokens` tokens, padding included.

    With `share`, rows of one task share their common prefix if that saves work; all other rows are grouped by length.
    A row longer than `tokens` is a micro-batch of its own.
    """
    batches: list[MicroBatch] = []
    unshared: list[int] = []
    by_group: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        by_group.setdefault(group, []).append(place)
    for members in by_group.values():
        prefix = common_prefix_length([rows[place] for place in members]) if share and len(members) > 1 else 0
        longest = max(len(rows[place].token_ids) for place in members)
        if prefix * (len(members) - 1) < longest:  # little to save, and the rows could not be packed with others
            unshared += members
        else:
            batches += _pack(rows, members, prefix, tokens)
    return batches + list(_pack(rows, unshared, 0, tokens))


def _pack(rows: Sequence[Row], members: Sequence[int], prefix: int, tokens: int) -> Iterator[MicroBatch]:
    """Micro-batches of the member rows, longest rows first, so that rows of similar length share a micro-batch."""
    chosen: list[int] = []
    for place in sorted(members, key=lambda place: -len(rows[place].token_ids)):
        longest = len(rows[chosen[0]].token_ids) if chosen else 0
        if chosen and prefix + (len(chosen) + 1) * (longest - prefix) > tokens:
            yield MicroBatch(rows=tuple(chosen), prefix=prefix)
            chosen = []
        chosen.append(place)
    if chosen:
        yield MicroBatch(rows=tuple(chosen), prefix=prefix)


def common_prefix_length(rows: Sequence[Row]) -> int:
    """Number of leading tokens that all rows share.

    The token that predicts the first drawn token of any row is never counted: each row computes it by itself.
    """
    first, *others = (row.token_ids for row in rows)
    length = min(row.spans[0][1] for row in rows) - 1
    for other in others:
        length = next((i for i in range(length) if first[i] != other[i]), length)
    return max(length, 0)


def token_values(
    model: PreTrainedModel,
    rows: Sequence[Row],
    *,
    prefix: int = 0,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
) -> TokenValues:
    """[B] rows -> the values of their drawn tokens. Gradients reach the weights also through a shared prefix.

    A gradient of the entropy keeps [K, vocabulary] values more until the backward pass.
    """
    drawn = [(b, t) for b, row in enumerate(rows) for _, start, end in row.spans for t in range(start, end)]
    hidden = _states_before(model, rows, drawn, prefix)
    ids = torch.tensor([rows[b].token_ids[t] for b, t in drawn], device=model.device, dtype=torch.long)
    logits = _logits(model, hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    distribution = torch.log_softmax(logits, dim=-1)
    with nullcontext() if entropy_gradient else torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(-1)
    return TokenValues(logprobs=-torch.nn.functional.nll_loss(distribution, ids, reduction="none"), entropy=entropy)


@torch.no_grad()
def hidden_features(model: PreTrainedModel, rows: Sequence[Row], places: FeaturePlaces, *, prefix: int = 0) -> Tensor:
    """[B] rows -> [P, H]: the last hidden states at `feature_positions`, row after row."""
    positions = [(b, place) for b, row in enumerate(rows) for place in feature_positions(row, places)]
    return _states_before(model, rows, positions, prefix).float()


def feature_positions(row: Row, places: FeaturePlaces) -> list[int]:
    """Positions of a row, each one behind the token whose hidden state is the feature."""
    match places:
        case "step":
            return [start for _, start, _ in row.steps]
        case "step end":
            return [end for _, _, end in row.steps]
        case "token":
            return [place for _, start, end in row.steps for place in range(start, end)]


def _states_before(
    model: PreTrainedModel, rows: Sequence[Row], positions: Sequence[tuple[int, int]], prefix: int
) -> Tensor:
    """[K] positions -> [K, H]: the last hidden states from which the tokens at these positions are predicted."""
    device = model.device
    tails = [row.token_ids[prefix:] for row in rows]
    longest = max(len(tail) for tail in tails)
    ids = torch.tensor([tail + (0,) * (longest - len(tail)) for tail in tails], device=device)
    options: dict[str, Any] = {"use_cache": False}
    if prefix:
        options = {"use_cache": True, "past_key_values": _prefix_cache(model, rows[0].token_ids[:prefix], len(rows))}
    if any(len(tail) < longest for tail in tails):
        seen = [[1] * (prefix + len(tail)) + [0] * (longest - len(tail)) for tail in tails]
        options["attention_mask"] = torch.tensor(seen, device=device)
    position_ids = torch.arange(prefix, prefix + longest, device=device).expand(len(rows), -1)
    hidden = _last_hidden_state(model, input_ids=ids, position_ids=position_ids, **options)
    if not positions:
        return hidden[:0, 0]
    row_index, token_index = torch.tensor(positions, device=device).T
    return hidden[row_index, token_index - prefix - 1]


def why_no_shared_prefix(model: PreTrainedModel) -> str:
    """The kind of layer whose state after a prefix cannot be given to several rows; empty if there is none.

    A layer with full attention keeps the keys and values of all tokens. One with a sliding window keeps the last ones
    only, and one with linear attention keeps a state instead.
    """
    layers = DynamicCache(config=model.config).layers
    others = {type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer}
    if not others:
        return ""
    if others == {DynamicSlidingWindowLayer.__name__}:
        return "sliding windows"
    return "linear attention" if any("Linear" in name for name in others) else ", ".join(sorted(others))


def _prefix_cache(model: PreTrainedModel, prefix: tuple[int, ...], copies: int) -> DynamicCache:
    """Keys and values of the prefix, computed once and expanded to as many rows."""
    computed = DynamicCache(config=model.config)
    ids = torch.tensor([prefix], device=model.device)
    _last_hidden_state(model, input_ids=ids, past_key_values=computed, use_cache=True)
    layers: list[Any] = list(computed.layers)
    pairs = [(layer.keys.expand(copies, -1, -1, -1), layer.values.expand(copies, -1, -1, -1)) for layer in layers]
    return DynamicCache(pairs)


def _last_hidden_state(model: Any, **inputs: Any) -> Tensor:
    last: Tensor = model.get_decoder()(**inputs).last_hidden_state
    return last


def _logits(model: Any, hidden: Tensor) -> Tensor:
    logits: Tensor = model.get_output_embeddings()(hidden)
    return logits


def has_plain_logits(model: PreTrainedModel, *, tolerance: float = 1e-3) -> bool:
    """True if the model's logits are its output embeddings applied to the last hidden state, neither scaled nor capped.

    Found by computing the logits of a few tokens both ways.
    """
    ids = torch.arange(2, 10, device=model.device)[None, :] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        whole = model(input_ids=ids).logits
        parts = _logits(model, _last_hidden_state(model, input_ids=ids))
    return bool((whole - parts).abs().max() <= tolerance * max(1.0, float(whole.abs().max())))
