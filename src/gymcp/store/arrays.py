"""Columns of numbers as bytes, in the smallest width that keeps every number exactly."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

IntKind = Literal["<u2", "<u3", "<i4", "<i8"]
"""Kind of little-endian integers; a vocabulary of more than 65,536 tokens takes ``<u3``, which numpy lacks."""
FloatKind = Literal["<f4", "<f8"]


def pack_int_column(parts: Sequence[tuple[int, ...]]) -> tuple[IntKind, bytes]:
    """Kind and bytes of several [L], joined. Raises OverflowError for a number of more than 64 bits."""
    try:
        wide = _pack("i", parts)
    except struct.error:
        return "<i8", b"".join(np.array(part, dtype="<i8").tobytes() for part in parts)
    array = np.frombuffer(wide, dtype="<i4")
    if array.size and int(array.min()) < 0:
        return "<i4", wide
    most = int(array.max()) if array.size else 0
    if most < 2**16:
        return "<u2", array.astype("<u2").tobytes()
    if most < 2**24:
        return "<u3", array.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return "<i4", wide


def unpack_int_column(kind: IntKind, data: bytes) -> list[int]:
    """The numbers that `pack_int_column` encoded, joined. Raises ValueError for a kind or bytes from elsewhere."""
    if kind not in get_args(IntKind):
        raise ValueError(f"no column of {str(kind)[:20]!r}; have {', '.join(get_args(IntKind))}")
    if kind != "<u3":
        return list(np.frombuffer(data, dtype=kind).tolist())
    wide = np.zeros((len(data) // 3, 4), dtype=np.uint8)
    wide[:, :3] = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3)
    return list(wide.view("<u4").ravel().tolist())


def pack_float_column(parts: Sequence[tuple[float, ...]]) -> tuple[FloatKind, bytes]:
    """Kind and bytes of several [L], joined.

    Single precision if all numbers have no more than that, as an engine's logprobs.
    """
    double = np.frombuffer(_pack("d", parts), dtype="<f8")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = double.astype("<f4")
    # compared as bits: NaN is not NaN, and 0.0 is -0.0
    if bool((single.astype("<f8").view("<u8") == double.view("<u8")).all()):
        return "<f4", single.tobytes()
    return "<f8", double.tobytes()


def unpack_float_column(kind: FloatKind, data: bytes) -> list[float]:
    """The numbers that `pack_float_column` encoded, joined. Raises ValueError for a kind or bytes from elsewhere."""
    if kind not in get_args(FloatKind):
        raise ValueError(f"no column of {str(kind)[:20]!r}; have {', '.join(get_args(FloatKind))}")
    return list(np.frombuffer(data, dtype=kind).astype("<f8").tolist())


def _pack(code: Literal["i", "d"], parts: Sequence[tuple[float, ...]]) -> bytes:
    # twice as fast as numpy arrays, and no part is copied on the way
    return b"".join(_layout(code, len(part)).pack(*part) for part in parts)


@functools.lru_cache(maxsize=4096)
def _layout(code: str, length: int) -> struct.Struct:
    return struct.Struct(f"<{length}{code}")
