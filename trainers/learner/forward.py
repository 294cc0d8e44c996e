"""Log-probabilities of drawn tokens under the weights being trained.

A prompt that several rows share is encoded once, and so are rows that are equal, and the beginning of all prompts.
"""

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
MAX_PADDING_TOKENS = 256
"""Most padding in a call of a model on CPU cores behind a shared prefix. A further call costs less than more of it."""
MIN_SAVED_TOKENS = 400
"""Fewest tokens that must be saved for a text to be encoded by itself. Its calls cost as much as that in a small model,
which cannot be used by several threads at a time, and little beside the rest of a large one's update."""

_KeysAndValues = tuple[Tensor, Tensor]
"""Keys and values of one layer, [1, heads, tokens, size] each."""


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
        common: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        """[B] rows -> [K] log-probabilities and [K] entropies of their drawn tokens, or the features at these places.

        `common`: see `token_values`.
        Returns a tuple of tensors, because DDP and FSDP do not find tensors inside a record.
        """
        if features is not None:
            return (hidden_features(self.model, rows, features, prefix=prefix),)
        values = token_values(
            self.model,
            rows,
            prefix=prefix,
            temperature=temperature,
            entropy_gradient=entropy_gradient,
            common=common,
        )
        return values.logprobs, values.entropy


def plan_micro_batches(rows: Sequence[Row], groups: Sequence[int], *, tokens: int, share: bool) -> list[MicroBatch]:
    """[B] rows and their task numbers -> micro-batches of at most `tokens` tokens, padding included.

    With `share`, rows of one task share their common prefix if that saves work; all other rows are grouped by length.
    Equal rows are in one micro-batch and count once. A row longer than `tokens` is a micro-batch of its own.
    """
    batches: list[MicroBatch] = []
    unshared: list[int] = []
    by_group: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        by_group.setdefault(group, []).append(place)
    for members in by_group.values():
        distinct, _ = find_distinct([rows[place] for place in members])
        prefix = common_prefix_length(distinct) if share and len(distinct) > 1 else 0
        longest = max(len(row.token_ids) for row in distinct)
        # little to save, and the rows could not be packed with others
        if prefix * (len(distinct) - 1) < max(longest, MIN_SAVED_TOKENS):
            unshared += members
        else:
            batches += _pack(rows, members, prefix, tokens)
    return batches + list(_pack(rows, unshared, 0, tokens))


def _pack(rows: Sequence[Row], members: Sequence[int], prefix: int, tokens: int) -> Iterator[MicroBatch]:
    """Micro-batches of the member rows, longest rows first, so that rows of similar length share a micro-batch."""
    distinct, origins = find_distinct([rows[place] for place in members])
    copies: list[list[int]] = [[] for _ in distinct]
    for place, origin in zip(members, origins, strict=True):
        copies[origin].append(place)
    chosen: list[int] = []
    count, longest = 0, 0
    for origin in sorted(range(len(distinct)), key=lambda origin: -len(distinct[origin].token_ids)):
        if chosen and prefix + (count + 1) * (longest - prefix) > tokens:
            yield MicroBatch(rows=tuple(chosen), prefix=prefix)
            chosen, count = [], 0
        longest = longest if chosen else len(distinct[origin].token_ids)
        chosen += copies[origin]
        count += 1
    if chosen:
        yield MicroBatch(rows=tuple(chosen), prefix=prefix)


def find_distinct(rows: Sequence[Row]) -> tuple[list[Row], list[int]]:
    """[B] rows -> the rows that differ in their tokens or in which of them were drawn, and for each of the B its own.

    Episodes of one task are often equal: the policy has drawn the same tokens, and the world has answered alike.
    """
    keys = [(row.token_ids, row.spans) for row in rows]
    first: dict[object, Row] = {}
    for key, row in zip(keys, rows, strict=True):
        first.setdefault(key, row)
    places = {key: place for place, key in enumerate(first)}
    return list(first.values()), [places[key] for key in keys]


def common_prefix_length(rows: Sequence[Row]) -> int:
    """Number of leading tokens that all rows share.

    The token that predicts the first drawn token of any row is never counted: each row computes it by itself.
    """
    most = max(min(row.spans[0][1] for row in rows) - 1, 0)
    return len(_common_start([row.token_ids[:most] for row in rows]))


def common_beginning(rows: Sequence[Row], micros: Sequence[MicroBatch]) -> tuple[int, ...]:
    """Tokens that all shared prefixes of these micro-batches begin with; empty if that saves little.

    They are encoded twice, and in no micro-batch: once without gradient, and once for the backward pass.
    """
    prefixes = [rows[micro.rows[0]].token_ids[: micro.prefix] for micro in micros if micro.prefix]
    common = _common_start(prefixes) if prefixes else ()
    return common if (len(prefixes) - 2) * len(common) >= MIN_SAVED_TOKENS else ()


def _common_start(texts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    first, last = min(texts), max(texts)  # in the order of the alphabet, so all others lie between them
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(map(len, texts)))
    return first[:length]


def token_values(
    model: PreTrainedModel,
    rows: Sequence[Row],
    *,
    prefix: int = 0,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    common: Sequence[Tensor] = (),
) -> TokenValues:
    """[B] rows -> the values of their drawn tokens. Gradients reach the weights also through a shared prefix.

    Rows that are equal are computed once. `common`: `encode_beginning` of the first tokens of the prefix, which then
    get the gradients of these tokens. A gradient of the entropy keeps [K, vocabulary] values more until the backward
    pass.
    """
    distinct, places = find_distinct(rows)
    if len(distinct) < len(rows):
        once = token_values(
            model,
            distinct,
            prefix=prefix,
            temperature=temperature,
            entropy_gradient=entropy_gradient,
            common=common,
        )
        sizes = [sum(end - start for _, start, end in row.spans) for row in distinct]
        # without indices, whose gradients are added up in no fixed order on some devices
        own_logprobs, own_entropy = (torch.split(values, sizes) for values in (once.logprobs, once.entropy))
        return TokenValues(
            logprobs=torch.cat([own_logprobs[place] for place in places]),
            entropy=torch.cat([own_entropy[place] for place in places]),
        )
    drawn = [(b, t) for b, row in enumerate(rows) for _, start, end in row.spans for t in range(start, end)]
    hidden = _states_before(model, rows, drawn, prefix, common)
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
    model: PreTrainedModel,
    rows: Sequence[Row],
    positions: Sequence[tuple[int, int]],
    prefix: int,
    common: Sequence[Tensor] = (),
) -> Tensor:
    """[K] positions, row after row -> [K, H]: the last hidden states from which the tokens there are predicted."""
    encoded = _encode_prefix(model, rows[0].token_ids[:prefix], common) if prefix else []
    parts = [slice(0, len(rows))]
    # sharded weights have no prefixes; their processes must all make equally many calls
    if prefix and model.device.type == "cpu":
        parts = cut_where_padding_grows([len(row.token_ids) for row in rows], MAX_PADDING_TOKENS)
    found = []
    for part in parts:
        hidden = _tail_states(model, rows[part], prefix, encoded)
        own = [(b - part.start, t - prefix - 1) for b, t in positions if part.start <= b < part.stop]
        if own:
            row_index, token_index = torch.tensor(own, device=model.device).T
            found.append(hidden[row_index, token_index])
        else:
            found.append(hidden[:0, 0])
    return torch.cat(found) if len(found) > 1 else found[0]


def cut_where_padding_grows(lengths: Sequence[int], most: int) -> list[slice]:
    """Runs of consecutive rows, each of which is padded by at most `most` tokens."""
    runs: list[slice] = []
    start = longest = total = 0
    for at, length in enumerate(lengths):
        longest, total = max(longest, length), total + length
        if longest * (at + 1 - start) - total > most:
            runs.append(slice(start, at))
            start, longest, total = at, length, length
    return [*runs, slice(start, len(lengths))]


def _tail_states(model: PreTrainedModel, rows: Sequence[Row], prefix: int, encoded: Sequence[_KeysAndValues]) -> Tensor:
    """[B] rows -> [B, T, H]: the last hidden states behind the prefix, garbage behind the end of a row."""
    device = model.device
    tails = [row.token_ids[prefix:] for row in rows]
    longest = max(len(tail) for tail in tails)
    ids = torch.tensor([tail + (0,) * (longest - len(tail)) for tail in tails], device=device)
    options: dict[str, Any] = {"use_cache": False}
    if prefix:
        pairs = [(keys.expand(len(rows), -1, -1, -1), values.expand(len(rows), -1, -1, -1)) for keys, values in encoded]
        options = {"use_cache": True, "past_key_values": DynamicCache(pairs)}
    if any(len(tail) < longest for tail in tails):
        seen = [[1] * (prefix + len(tail)) + [0] * (longest - len(tail)) for tail in tails]
        options["attention_mask"] = torch.tensor(seen, device=device)
    position_ids = torch.arange(prefix, prefix + longest, device=device).expand(len(rows), -1)
    return _last_hidden_state(model, input_ids=ids, position_ids=position_ids, **options)


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


def encode_beginning(model: PreTrainedModel, tokens: tuple[int, ...]) -> list[Tensor]:
    """Keys of the first layer, its values, keys of the second layer and so on, [1, heads, tokens, size] each."""
    return [each for pair in _encode_prefix(model, tokens, ()) for each in pair]


def _encode_prefix(model: PreTrainedModel, prefix: tuple[int, ...], common: Sequence[Tensor]) -> list[_KeysAndValues]:
    """Keys and values of the prefix, for each layer. `common`: those of its first tokens, if they are known."""
    pairs = list(zip(common[::2], common[1::2], strict=True))
    known = common[0].shape[2] if common else 0
    if known == len(prefix):
        return pairs
    computed = DynamicCache(pairs) if pairs else DynamicCache(config=model.config)
    ids = torch.tensor([prefix[known:]], device=model.device)
    position_ids = torch.arange(known, len(prefix), device=model.device)[None]
    _last_hidden_state(model, input_ids=ids, position_ids=position_ids, past_key_values=computed, use_cache=True)
    layers: list[Any] = list(computed.layers)
    return [(layer.keys, layer.values) for layer in layers]


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
