"""The engine's forward pass in plain torch, for models like Llama: half the time of transformers' modules.

Tokens of all requests are computed in one list without padding. Only attention of single tokens is a rectangle, as long
as the longest slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gymcp.agents.policies.engine.llama_weights import Rotation, Sizes, Weights, check_weights, enlarge
from gymcp.agents.policies.engine.sampler import Drawn, draw
from gymcp.agents.policies.engine.slots import round_capacity
from gymcp.types import Sampling


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of a layer, projections of the same input joined."""

    norm: Tensor
    qkv: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class _Queries:
    """Queries that are attended at once: one token of each of some slots, or several tokens of one slot."""

    tokens: Tensor
    """Places in the list of tokens; for several slots [slots], for one slot [T]."""
    slots: slice | Tensor
    places: Tensor | None
    """Place of each token in `slots`, if `slots` holds more; else None."""
    length: int
    """Number of positions that are read."""
    mask: Tensor
    """Additive; [slots, 1, 1, length], or [T x group, length] for one slot."""


class TorchForward:
    """Computes chunks of tokens over keys and values held in slots. Weights are copied: `reload` tells of new ones."""

    name = "torch"
    ragged = True
    batch_invariant = False

    def __init__(self, read: Callable[[], Weights], sizes: Sizes, slots: int, max_context: int) -> None:
        self.max_context = max_context
        self._read, self._sizes = read, sizes
        self._group = sizes.heads // sizes.key_heads
        self._weights: Weights | None = None
        self._layers: list[_Layer] = []
        self._keys = torch.zeros(sizes.layers, slots, sizes.key_heads, 0, sizes.head_size)
        self._values = self._keys
        self._rotation = Rotation(read().frequencies, sizes.rotary_scaling)

    def reload(self) -> None:
        """Read the weights again before the next forward pass."""
        self._weights = None

    @torch.inference_mode()
    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` of one slot into another."""
        for held in (self._keys, self._values):
            held[:, target, :, :tokens] = held[:, source, :, :tokens]

    def draw(self, logits: Tensor, rules: Sequence[Sampling], uniforms: Sequence[float]) -> Drawn:
        """Sample one token per row."""
        return draw(logits, rules, uniforms)

    def close(self) -> None:
        """Release the keys and values."""
        self._keys = self._values = torch.empty(0)

    @torch.inference_mode()
    def forward(
        self, slots: Sequence[int], starts: Sequence[int], chunks: Sequence[Sequence[int]], *, window: bool
    ) -> Tensor:
        """Chunks of tokens, one per slot, at positions from `start` on -> logits [B, V] after the last of each chunk.

        `window` allows reading contiguous slots in place, without a copy. Raises ValueError for weights of wrong shape.
        """
        weights = self._load()
        counts = [len(chunk) for chunk in chunks]
        self._reserve(max(start + count for start, count in zip(starts, counts, strict=True)))
        ids = torch.tensor([token for chunk in chunks for token in chunk])
        positions = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, counts, strict=True)])
        rows = torch.repeat_interleave(torch.tensor(slots), torch.tensor(counts))
        last = torch.tensor(counts).cumsum(0) - 1
        every = self._plan(slots, starts, counts, window=window)
        final = [self._join(list(slots), last, positions[last], window=window)]
        turn = (self._rotation.cosines[positions][:, None], self._rotation.sines[positions][:, None])
        x = F.embedding(ids, weights.embedding)
        for number, layer in enumerate(self._layers):
            queries = self._project(number, layer, x, rows, positions, turn)
            # after the last layer, only the last token of each chunk is needed
            ends = number == len(self._layers) - 1
            attended = self._attend(number, queries, final if ends else every)
            x = self._transform(layer, *((x[last], attended[last]) if ends else (x, attended)))
        return F.linear(F.rms_norm(x, x.shape[-1:], weights.norm, self._sizes.eps), weights.head)

    def _project(
        self, number: int, layer: _Layer, x: Tensor, rows: Tensor, positions: Tensor, turn: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[T, hidden] -> queries [T, heads, size]; writes keys and values."""
        sizes = self._sizes
        normed = F.rms_norm(x, x.shape[-1:], layer.norm, sizes.eps)
        qkv = F.linear(normed, layer.qkv).view(len(x), -1, sizes.head_size)
        queries, keys, values = torch.split(qkv, [sizes.heads, sizes.key_heads, sizes.key_heads], dim=1)
        if layer.query_norm is not None:
            queries = F.rms_norm(queries, queries.shape[-1:], layer.query_norm, sizes.eps)
            keys = F.rms_norm(keys, keys.shape[-1:], layer.key_norm, sizes.eps)
        queries, keys = _rotate(queries, *turn), _rotate(keys, *turn)
        self._keys[number][rows, :, positions] = keys
        self._values[number][rows, :, positions] = values
        return queries

    def _attend(self, number: int, queries: Tensor, plan: list[_Queries]) -> Tensor:
        """[T, heads, size] -> [T, heads * size] for the tokens of the plan; others hold anything."""
        sizes, out = self._sizes, torch.empty_like(queries)
        for part in plan:
            own = queries[part.tokens].view(-1, sizes.key_heads, self._group, sizes.head_size)
            keys = self._keys[number][part.slots, :, : part.length]
            values = self._values[number][part.slots, :, : part.length]
            if part.mask.dim() == 2:  # one slot: its tokens, and heads that share a key head, are rows
                own = own.permute(1, 0, 2, 3).reshape(1, sizes.key_heads, -1, sizes.head_size)
                attended = F.scaled_dot_product_attention(own, keys, values, attn_mask=part.mask)
                attended = attended.view(sizes.key_heads, -1, self._group, sizes.head_size).permute(1, 0, 2, 3)
            elif part.places is None:
                attended = F.scaled_dot_product_attention(own, keys, values, attn_mask=part.mask)
            else:
                spread = own.new_zeros(len(keys), *own.shape[1:]).index_copy_(0, part.places, own)
                attended = F.scaled_dot_product_attention(spread, keys, values, attn_mask=part.mask)[part.places]
            out[part.tokens] = attended.reshape(-1, sizes.heads, sizes.head_size)
        return out.flatten(1)

    def _transform(self, layer: _Layer, x: Tensor, attended: Tensor) -> Tensor:
        x = x + F.linear(attended, layer.out)
        normed = F.rms_norm(x, x.shape[-1:], layer.mlp_norm, self._sizes.eps)
        gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, layer.down)

    def _plan(
        self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int], *, window: bool
    ) -> list[_Queries]:
        """The rectangle of all single tokens, and the triangle of every longer chunk."""
        plan, single, first = [], [], 0
        for slot, start, count in zip(slots, starts, counts, strict=True):
            if count == 1:
                single.append((slot, first, start))
            else:
                later = torch.arange(start + count) > torch.arange(start, start + count)[:, None]
                mask = torch.zeros(later.shape).masked_fill_(later, -torch.inf).repeat_interleave(self._group, 0)
                tokens = torch.arange(first, first + count)
                plan.append(_Queries(tokens, slice(slot, slot + 1), None, start + count, mask))
            first += count
        if single:
            chosen, places, positions = zip(*single, strict=True)
            plan.append(self._join(list(chosen), torch.tensor(places), torch.tensor(positions), window=window))
        return plan

    def _join(self, slots: list[int], tokens: Tensor, positions: Tensor, *, window: bool) -> _Queries:
        """One token of each of the slots, at these positions."""
        length, low, high = int(positions.max()) + 1, min(slots), max(slots) + 1
        places: Tensor | None = None
        read: slice | Tensor = torch.tensor(slots)
        if window and high - low <= 2 * len(slots):  # reading some slots in vain is cheaper than copying the others
            read, places = slice(low, high), torch.tensor(slots) - low
            positions = torch.zeros(high - low, dtype=torch.long).index_copy_(0, places, positions)
        later = torch.arange(length) > positions[:, None, None, None]
        return _Queries(tokens, read, places, length, torch.zeros(later.shape).masked_fill_(later, -torch.inf))

    def _reserve(self, tokens: int) -> None:
        capacity = self._keys.shape[3]
        if tokens > capacity:
            capacity = round_capacity(max(tokens, 2 * capacity))
            self._keys, self._values = enlarge(self._keys, 3, capacity), enlarge(self._values, 3, capacity)
            self._rotation.reserve(capacity)

    def _load(self) -> Weights:
        """The weights, read and joined if they are new."""
        if self._weights is None:
            weights = self._read()
            check_weights(weights, self._sizes)
            self._layers = [
                _Layer(
                    norm=layer.norm,
                    qkv=torch.cat([layer.query, layer.key, layer.value]),
                    query_norm=layer.query_norm,
                    key_norm=layer.key_norm,
                    out=layer.out,
                    mlp_norm=layer.mlp_norm,
                    gate_up=torch.cat([layer.gate, layer.up]),
                    down=layer.down,
                )
                for layer in weights.layers
            ]
            self._weights = weights
        return self._weights


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """[T, heads, size] with its halves turned by the angle of the position."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
