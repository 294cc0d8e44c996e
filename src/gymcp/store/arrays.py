"""Columns of numbers as bytes, in the least width that keeps every one of them exactly."""

from __future__ import annotations

import struct
from typing import Literal

import numpy as np

IntKind = Literal["<u2", "<u3", "<i4", "<i8"]
"""Of little-endian integers; numpy has no ``<u3``, which a vocabulary of more than 65,536 tokens takes."""
FloatKind = Literal["<f4", "<f8"]


def pack_int_column(values: tuple[int, ...]) -> tuple[IntKind, bytes]:
    """[L] -> the kind and the bytes. Raises OverflowError for what takes more than 64 bits."""
    try:
        wide = struct.pack(f"<{len(values)}i", *values)  # twice as fast as an array of numpy's
    except struct.error:
        return "<i8", np.array(values, dtype="<i8").tobytes()
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
    """[L]: what `pack_int_column` was given."""
    if kind != "<u3":
        return list(np.frombuffer(data, dtype=kind).tolist())
    wide = np.zeros((len(data) // 3, 4), dtype=np.uint8)
    wide[:, :3] = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3)
    return list(wide.view("<u4").ravel().tolist())


def pack_float_column(values: tuple[float, ...]) -> tuple[FloatKind, bytes]:
    """[L] -> the kind and the bytes: single precision where that is what they are, as an engine's logprobs."""
    double = np.frombuffer(struct.pack(f"<{len(values)}d", *values), dtype="<f8")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = double.astype("<f4")
    # compared as bits: NaN is not NaN, and 0.0 is -0.0
    if bool((single.astype("<f8").view("<u8") == double.view("<u8")).all()):
        return "<f4", single.tobytes()
    return "<f8", double.tobytes()


def unpack_float_column(kind: FloatKind, data: bytes) -> list[float]:
    """[L]: what `pack_float_column` was given."""
    return list(np.frombuffer(data, dtype=kind).astype("<f8").tolist())
