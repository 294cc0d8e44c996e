"""Metadata and weights of a GGUF file, the format of llama.cpp (version 3, little-endian).

Weights come back in float32. Four kinds of tensors are read: float32, float16, Q4_1 and Q8_0.

Source: the specification in ggml's ``docs/gguf.md``, and the block layouts of ``ggml-common.h``.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gymcp.errors import ConfigError

MAGIC = b"GGUF"
VERSION = 3
BLOCK = 32
"""Weights of one quantised block."""
DEFAULT_ALIGNMENT = 32
"""Bytes to whose multiples the tensors are aligned, unless the file says otherwise."""
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value in the metadata -> its format for `struct`."""
_STRING, _ARRAY = 8, 9

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    metadata: dict[str, Any]
    """Values by key, as numbers, texts and lists."""
    tensors: dict[str, Floats]
    """Weights by name; the first axis is the outermost one, as in torch."""


def read_gguf(path: Path) -> GgufFile:
    """Metadata and weights of the file. Raises ConfigError for another version or kind of tensor, OSError."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data)
        if data[:4] != MAGIC:
            raise ConfigError(f"{path.name}: is no GGUF file: it does not begin with {MAGIC.decode()}")
        reader.place = 4
        if (version := reader.number("I")) != VERSION:
            raise ConfigError(f"{path.name}: is GGUF of version {version}; only version {VERSION} is read")
        tensor_count, key_count = reader.number("Q"), reader.number("Q")
        metadata = {reader.text(): reader.value(reader.number("I")) for _ in range(key_count)}
        headers = [reader.tensor() for _ in range(tensor_count)]
        alignment = int(metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        begin = -(-reader.place // alignment) * alignment
        return GgufFile(
            metadata=metadata, tensors={header.name: _weights(path.name, data, begin, header) for header in headers}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    name: str
    shape: tuple[int, ...]
    """Lengths of the axes, outermost first."""
    kind: int
    offset: int
    """Bytes from the first tensor's place."""


class _Reader:
    """Values one after another, from `place` on."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.place = 0

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self.place)
        self.place += struct.calcsize(f"<{form}")
        return value

    def text(self) -> str:
        length = self.number("Q")
        self.place += length
        return self._data[self.place - length : self.place].decode()

    def value(self, kind: int) -> Any:
        """The value of a kind of the metadata."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            return [self.value(inner) for _ in range(count)]
        return self.number(_NUMBERS[kind])

    def tensor(self) -> _Header:
        name = self.text()
        axes = [self.number("Q") for _ in range(self.number("I"))]
        return _Header(name=name, shape=tuple(reversed(axes)), kind=self.number("I"), offset=self.number("Q"))


def _weights(who: str, data: mmap.mmap, begin: int, header: _Header) -> Floats:
    if header.kind not in _KINDS:
        raise ConfigError(f"{who}: tensor '{header.name}' is of kind {header.kind}; only {sorted(_KINDS)} are read")
    name, per_block, size, decode = _KINDS[header.kind]
    count = int(np.prod(header.shape))
    if count % per_block:
        raise ConfigError(f"{who}: tensor '{header.name}' has {count} weights, no multiple of {per_block} ({name})")
    raw = np.frombuffer(data, np.uint8, count // per_block * size, begin + header.offset)
    weights = decode(raw.reshape(-1, size)).reshape(header.shape)
    del raw  # the map cannot be closed while an array looks into it
    return weights


def _float32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _float16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _q4_1(blocks: Bytes) -> Floats:
    """[B, 20] -> [B, 32]: scale and minimum, then the low halves of 16 bytes and their high halves."""
    scale, low = _float16(blocks[:, :2].copy()), _float16(blocks[:, 2:4].copy())
    nibbles = np.concatenate([blocks[:, 4:] & 0x0F, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    return np.asarray(scale * nibbles + low, dtype=np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    """[B, 34] -> [B, 32]: scale, then 32 signed bytes."""
    scale = _float16(blocks[:, :2].copy())
    return np.asarray(scale * blocks[:, 2:].copy().view(np.int8).astype(np.float32), dtype=np.float32)


_KINDS: dict[int, tuple[str, int, int, Callable[[Bytes], Floats]]] = {
    0: ("float32", 1, 4, _float32),
    1: ("float16", 1, 2, _float16),
    3: ("Q4_1", BLOCK, 20, _q4_1),
    8: ("Q8_0", BLOCK, 34, _q8_0),
}
"""Kind of a tensor -> its name, weights of a block, bytes of a block, and decoder."""
