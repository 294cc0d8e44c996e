"""Records of the weights and sizes of models like Llama, for forward passes that compute them without transformers.

Such a model has RMSNorm before attention and before a gated SiLU MLP, rotary positions, grouped heads over full
attention, no biases, and in Qwen3 norms of queries and keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes and constants of a model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    head_norms: bool
    """True if queries and keys are normalised per head."""
    eps: float
    """Added to the mean square in every norm."""
    rotary_scaling: float = 1.0
    """Factor of the cosines and sines of positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weights of one layer; matrices are [out, in]."""

    norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights of a model; matrices are [out, in]."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    frequencies: Tensor
    """[head_size / 2]: angle per position, by which pairs of a head are rotated."""


def check_weights(weights: Weights, sizes: Sizes) -> None:
    """Raises ValueError for a tensor whose shape, type or device is not the model's."""
    for name, tensor, shape in _list_shapes(weights, sizes):
        if tensor.shape != shape or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ValueError(
                f"{name} is {tuple(tensor.shape)} in {tensor.dtype} on {tensor.device}; expected {shape} in float32"
            )


def _list_shapes(weights: Weights, sizes: Sizes) -> Iterator[tuple[str, Tensor, tuple[int, ...]]]:
    hidden, size = sizes.hidden, sizes.head_size
    queries, keys = sizes.heads * size, sizes.key_heads * size
    yield "embedding", weights.embedding, (sizes.vocabulary, hidden)
    yield "head", weights.head, (sizes.vocabulary, hidden)
    yield "norm", weights.norm, (hidden,)
    yield "frequencies", weights.frequencies, (size // 2,)
    for number, layer in enumerate(weights.layers):
        shapes: dict[str, tuple[int, ...]] = {
            "norm": (hidden,),
            "query": (queries, hidden),
            "key": (keys, hidden),
            "value": (keys, hidden),
            "out": (hidden, queries),
            "mlp_norm": (hidden,),
            "gate": (sizes.intermediate, hidden),
            "up": (sizes.intermediate, hidden),
            "down": (hidden, sizes.intermediate),
        }
        if sizes.head_norms:
            shapes |= {"query_norm": (size,), "key_norm": (size,)}
        for name, shape in shapes.items():
            yield f"layer {number} {name}", getattr(layer, name), shape


class Rotation:
    """Cosines and sines of positions, [positions, head_size / 2] each, for as many positions as were reserved."""

    def __init__(self, frequencies: Tensor, scaling: float) -> None:
        self._frequencies, self._scaling = frequencies.detach().float().clone(), scaling
        self.cosines = self.sines = torch.empty(0, len(frequencies))

    @torch.inference_mode()
    def reserve(self, positions: int) -> None:
        """Make the tables this long."""
        angles = torch.arange(positions)[:, None].float() * self._frequencies
        self.cosines, self.sines = angles.cos() * self._scaling, angles.sin() * self._scaling


def enlarge(tensor: Tensor, dim: int, size: int) -> Tensor:
    """The tensor with `size` places along `dim`, zeros behind its own."""
    shape = list(tensor.shape)
    shape[dim] = size
    larger = tensor.new_zeros(shape)
    larger.narrow(dim, 0, tensor.shape[dim]).copy_(tensor)
    return larger
