"""The engine's forward pass and sampling in C++ (`slot_forward.cpp`), for models like Llama, called through ctypes.

Python packs the weights, owns all memory and hands over addresses; the C++ only computes. ctypes releases the
interpreter's lock meanwhile. Results do not depend on what else is computed in the same call, to the last bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gymcp.agents.policies.engine.llama_weights import LayerWeights, Rotation, Sizes, Weights, check_weights, enlarge
from gymcp.agents.policies.engine.sampler import GREEDY_BELOW, MAX_UNIFORM, Drawn
from gymcp.agents.policies.engine.slots import round_capacity
from gymcp.types import Sampling

_SIZES = ("layers", "hidden", "intermediate", "heads", "key_heads", "head_size", "vocabulary", "head_norms", "eps")


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in _SIZES[:-1]),
        ("eps", c_double),
        ("scaling", c_double),
    ]


class _Layer(ctypes.Structure):
    _fields_ = [
        (name, c_void_p) for name in ("norm", "qkv", "query_norm", "key_norm", "out", "mlp_norm", "gate_up", "down")
    ]


class _Weights(ctypes.Structure):
    _fields_ = [("embedding", c_void_p), ("norm", c_void_p), ("head", c_void_p), ("layers", ctypes.POINTER(_Layer))]


class _Cache(ctypes.Structure):
    _fields_ = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("slots", c_int64),
        ("capacity", c_int64),
        ("cosine", c_void_p),
        ("sine", c_void_p),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [("rows", c_int64), *((name, c_void_p) for name in ("slot", "start", "count", "ids"))]


class CppLibrary:
    """The compiled functions. Raises OSError for a file that is not loadable, AttributeError for another library."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.forward = library.gymcp_forward
        self.draw = library.gymcp_draw
        for function in (self.forward, self.draw):
            function.restype = c_int64
        self.forward.argtypes = [c_void_p] * 5
        self.draw.argtypes = [c_int64] * 3 + [c_void_p] * 7
        library.gymcp_panel.restype = library.gymcp_value_columns.restype = c_int64
        library.gymcp_value_columns.argtypes = [c_int64]
        self.panel: int = library.gymcp_panel()
        """Columns of a packed matrix that lie side by side."""
        self.value_columns: Callable[[int], int] = library.gymcp_value_columns


class CppForward:
    """Computes chunks of tokens over keys and values held in slots. Weights are copied: `reload` tells of new ones."""

    name = "cpp"
    ragged = True
    batch_invariant = True

    def __init__(
        self, library: CppLibrary, read: Callable[[], Weights], sizes: Sizes, slots: int, max_context: int
    ) -> None:
        self.max_context = max_context
        self._library, self._read, self._sizes, self._slots = library, read, sizes, slots
        self._shape = _Shape(**{name: getattr(sizes, name) for name in _SIZES}, scaling=sizes.head_size**-0.5)
        self._weights: _Weights | None = None
        self._held: list[Tensor] = []
        """The tensors to which `_weights` points."""
        columns, panel = library.value_columns(sizes.head_size), library.panel
        places = (sizes.layers, slots, sizes.key_heads)
        self._keys = torch.zeros(*places, 0, sizes.head_size, panel)
        self._values = torch.zeros(*places, -(-sizes.head_size // columns), 0, columns)
        self._rotation = Rotation(read().frequencies, sizes.rotary_scaling)

    def reload(self) -> None:
        """Read the weights again before the next forward pass."""
        self._weights = None

    @torch.inference_mode()
    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` of one slot into another."""
        panels = -(-tokens // self._library.panel)
        self._keys[:, target, :, :panels] = self._keys[:, source, :, :panels]
        self._values[:, target, :, :, :tokens] = self._values[:, source, :, :, :tokens]

    def close(self) -> None:
        """Release the keys and values."""
        self._keys, self._values = torch.empty(0), torch.empty(0)

    def forward(
        self, slots: Sequence[int], starts: Sequence[int], chunks: Sequence[Sequence[int]], *, window: bool
    ) -> Tensor:
        """Chunks of tokens, one per slot, at positions from `start` on -> logits [B, V] after the last of each chunk.

        `window` changes nothing. Raises ValueError for weights of wrong shape, MemoryError.
        """
        weights = self._load()
        counts = np.array([len(chunk) for chunk in chunks], dtype=np.int64)
        places = [np.array(numbers, dtype=np.int64) for numbers in (slots, starts)]
        ids = np.array([token for chunk in chunks for token in chunk], dtype=np.int64)
        self._reserve(int((places[1] + counts).max()))
        cache = _Cache(
            self._keys.data_ptr(),
            self._values.data_ptr(),
            self._slots,
            self._values.shape[4],
            self._rotation.cosines.data_ptr(),
            self._rotation.sines.data_ptr(),
        )
        batch = _Batch(len(chunks), *(_address(numbers) for numbers in (*places, counts, ids)))
        panel, vocabulary = self._library.panel, self._sizes.vocabulary
        logits = torch.empty(len(chunks), -(-vocabulary // panel) * panel)
        pointers = [ctypes.byref(record) for record in (self._shape, weights, cache, batch)]
        _check_memory(self._library.forward(*pointers, logits.data_ptr()))
        return logits[:, :vocabulary]

    def draw(self, logits: Tensor, rules: Sequence[Sampling], uniforms: Sequence[float]) -> Drawn:
        """Sample one token per row; equal to `sampler.draw` up to rounding."""
        return draw_tokens(self._library, logits, rules, uniforms)

    @torch.inference_mode()
    def _reserve(self, tokens: int) -> None:
        capacity = self._values.shape[4]
        if tokens > capacity:
            capacity = round_capacity(max(tokens, 2 * capacity))
            self._keys = enlarge(self._keys, 3, capacity // self._library.panel)
            self._values = enlarge(self._values, 4, capacity)
            self._rotation.reserve(capacity)

    @torch.inference_mode()
    def _load(self) -> _Weights:
        """The packed weights, made anew if there are new ones."""
        if self._weights is None:
            weights = self._read()
            check_weights(weights, self._sizes)
            self._held = []
            layers = (_Layer * len(weights.layers))(*(self._pack_layer(layer) for layer in weights.layers))
            self._weights = _Weights(
                self._hold(weights.embedding.clone()),
                self._hold(weights.norm.clone()),
                self._hold(self._pack(weights.head)),
                layers,
            )
        return self._weights

    def _pack_layer(self, layer: LayerWeights) -> _Layer:
        panel, rows = self._library.panel, self._sizes.intermediate
        halves = [F.pad(half, (0, 0, 0, -rows % panel)) for half in (layer.gate, layer.up)]
        return _Layer(
            norm=self._hold(layer.norm.clone()),
            qkv=self._hold(self._pack(torch.cat([layer.query, layer.key, layer.value]))),
            query_norm=None if layer.query_norm is None else self._hold(layer.query_norm.clone()),
            key_norm=None if layer.key_norm is None else self._hold(layer.key_norm.clone()),
            out=self._hold(self._pack(layer.out)),
            mlp_norm=self._hold(layer.mlp_norm.clone()),
            gate_up=self._hold(self._pack(torch.cat(halves))),
            down=self._hold(self._pack(layer.down)),
        )

    def _pack(self, matrix: Tensor) -> Tensor:
        """[out, in] -> [panels, in, outputs of a panel], zeros behind the last output."""
        panel = self._library.panel
        padded = F.pad(matrix, (0, 0, 0, -len(matrix) % panel))
        return padded.view(-1, panel, matrix.shape[1]).transpose(1, 2).contiguous()

    def _hold(self, tensor: Tensor) -> int:
        self._held.append(tensor)
        return tensor.data_ptr()


def draw_tokens(library: CppLibrary, logits: Tensor, rules: Sequence[Sampling], uniforms: Sequence[float]) -> Drawn:
    """Logits [B, V] in float32 -> one token per row; equal to `sampler.draw` up to rounding."""
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
    temperatures = [rule.temperature if rule.temperature >= GREEDY_BELOW else 0.0 for rule in rules]
    settings = (
        np.array(temperatures, dtype=np.float64),
        np.array([rule.top_p for rule in rules], dtype=np.float64),
        np.array([rule.top_k for rule in rules], dtype=np.int64),
        np.array([min(number, MAX_UNIFORM) for number in uniforms], dtype=np.float64),
    )
    ids, logprobs = np.empty(len(rules), dtype=np.int64), np.empty(len(rules), dtype=np.float64)
    size = (len(rules), logits.shape[1], logits.stride(0))
    _check_memory(library.draw(*size, logits.data_ptr(), *map(_address, (*settings, ids, logprobs))))
    return Drawn(ids=ids.tolist(), logprobs=logprobs.tolist())


def _address(numbers: NDArray[Any]) -> int:
    return numbers.ctypes.data


def _check_memory(failed: int) -> None:
    if failed:
        raise MemoryError("the C++ forward pass cannot get its memory")
