"""Log-probabilities of drawn tokens under the weights being trained.

A prompt that several rows share is encoded once, and so are rows that are equal, the beginning of all prompts, and what
some rows share behind their prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from gymcp.errors import ConfigError
from gymcp.trainers.learner.micro_batches import cut_where_padding_grows, find_distinct
from gymcp.trainers.learner.prefix_tree import CallCosts, find_segments, mark_visible, place_tokens, plan_calls
from gymcp.trainers.learner.token_rows import Row
from gymcp.trainers.settings.arrays import Ints

FeaturePlaces = Literal["step", "step end", "token"]
"""step: before each step's first token. step end: at each step's last token. token: before every token of each step."""
MAX_PADDING_TOKENS = 256
"""Most padding in a call of a model on CPU cores behind a shared prefix. A further call costs less than more of it."""
CALL_TOKENS = {"cpu": MAX_PADDING_TOKENS}
"""Tokens that a small model computes in the time that a further call of it takes, by the type of its device."""
LAUNCH_TOKENS = 4096
"""The same on other devices, to which a call gives hundreds of small programs to start: a guess, not measured."""

_KeysAndValues = tuple[Tensor, Tensor]
"""Keys and values of one layer, [1, heads, tokens, size] each."""


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
        nested: bool = False,
        temperature: float = 1.0,
        features: FeaturePlaces | None = None,
        entropy_gradient: bool = False,
        common: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        """[B] rows -> [K] log-probabilities and [K] entropies of their drawn tokens, or the features at these places.

        `nested`, `common`: see `token_values`.
        Returns a tuple of tensors, because DDP and FSDP do not find tensors inside a record.
        """
        if features is not None:
            return (hidden_features(self.model, rows, features, prefix=prefix, nested=nested),)
        values = token_values(
            self.model,
            rows,
            prefix=prefix,
            nested=nested,
            temperature=temperature,
            entropy_gradient=entropy_gradient,
            common=common,
        )
        return values.logprobs, values.entropy


def token_values(
    model: PreTrainedModel,
    rows: Sequence[Row],
    *,
    prefix: int = 0,
    nested: bool = False,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    common: Sequence[Tensor] = (),
) -> TokenValues:
    """[B] rows -> the values of their drawn tokens. Gradients reach the weights also through a shared prefix.

    Rows that are equal are computed once, and with `nested` so is all that some of them share behind the prefix.
    `common`: `encode_beginning` of the first tokens of the prefix, which then get the gradients of these tokens. A
    gradient of the entropy keeps [K, vocabulary] values more until the backward pass.
    """
    distinct, places = find_distinct(rows)
    if len(distinct) < len(rows):
        once = token_values(
            model,
            distinct,
            prefix=prefix,
            nested=nested,
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
    hidden = _states_before(model, rows, drawn, prefix, nested, common)
    ids = torch.tensor([rows[b].token_ids[t] for b, t in drawn], device=model.device, dtype=torch.long)
    logits = _logits(model, hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    distribution = torch.log_softmax(logits, dim=-1)
    with nullcontext() if entropy_gradient else torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(-1)
    return TokenValues(logprobs=-torch.nn.functional.nll_loss(distribution, ids, reduction="none"), entropy=entropy)


@torch.no_grad()
def hidden_features(
    model: PreTrainedModel, rows: Sequence[Row], places: FeaturePlaces, *, prefix: int = 0, nested: bool = False
) -> Tensor:
    """[B] rows -> [P, H]: the last hidden states at `feature_positions`, row after row."""
    positions = [(b, place) for b, row in enumerate(rows) for place in feature_positions(row, places)]
    return _states_before(model, rows, positions, prefix, nested).float()


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
    nested: bool,
    common: Sequence[Tensor] = (),
) -> Tensor:
    """[K] positions, row after row -> [K, H]: the last hidden states from which the tokens there are predicted."""
    encoded = _encode_prefix(model, rows[0].token_ids[:prefix], common) if prefix else []
    if nested:
        hidden, places = _tree_states(model, rows, prefix, encoded)
        return select_runs(hidden, np.array([places[b][t - prefix - 1] for b, t in positions], np.int64))
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


def _tree_states(
    model: PreTrainedModel, rows: Sequence[Row], prefix: int, encoded: list[_KeysAndValues]
) -> tuple[Tensor, list[Ints]]:
    """[B] rows -> [T, H]: the last hidden states of all tokens behind the prefix, once of those that rows share; and
    for each row the places of its own."""
    segments, ends = find_segments([row.token_ids for row in rows], prefix)
    calls, _ = plan_calls(segments, estimate_call_costs(model))
    behind = {-1: encoded, 0: encoded}
    """Keys and values of all tokens up to the end of a segment. The first one may be empty."""
    found = []
    for call in calls:
        own = segments[call.first : call.last]
        ids = [rows[each.row].token_ids[each.start : each.end] for each in own]
        options: dict[str, Any] = {"use_cache": False}
        if behind[call.parent] or call.is_read:
            known = DynamicCache(behind[call.parent]) if behind[call.parent] else DynamicCache(config=model.config)
            options = {"use_cache": True, "past_key_values": known}
        visible = mark_visible(segments, call)
        if visible is not None:
            options["attention_mask"] = torch.from_numpy(visible).to(model.device)[None, None]
        hidden = _last_hidden_state(
            model,
            input_ids=torch.tensor([[token for part in ids for token in part]], device=model.device),
            position_ids=torch.cat([torch.arange(each.start, each.end) for each in own])[None].to(model.device),
            **options,
        )
        found.append(hidden[0])
        if call.is_read:
            layers: list[Any] = list(options["past_key_values"].layers)
            behind[call.first] = [(layer.keys, layer.values) for layer in layers]
    return torch.cat(found), place_tokens(segments, calls, ends)


def select_runs(values: Tensor, places: Ints) -> Tensor:
    """[T, H] values, [K] places of them -> [K, H], whose gradients are added up in a fixed order.

    The gradient of an index that has a place twice is added up in any order on some devices.
    """
    if not len(places):
        return values[:0]
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    starts, ends = places[[0, *breaks]], places[[*(breaks - 1), -1]] + 1
    cuts = np.unique([0, *starts, *ends, len(values)])
    parts = torch.split(values, np.diff(cuts).tolist())
    runs = zip(np.searchsorted(cuts, starts), np.searchsorted(cuts, ends), strict=True)
    return torch.cat([part for first, last in runs for part in parts[first:last]])


def estimate_call_costs(model: PreTrainedModel) -> CallCosts:
    """The figures by which calls of the model are compared."""
    width: int = model.config.get_text_config().hidden_size
    return CallCosts(width=width, overhead=CALL_TOKENS.get(model.device.type, LAUNCH_TOKENS))


def reads_masks_of_trees(model: PreTrainedModel) -> bool:
    """True if the model's attention takes a mask that says of every two tokens whether one sees the other."""
    return bool(model.config._attn_implementation == "sdpa")


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
