"""Numbers come back unchanged, in the smallest width that holds them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymcp.store.arrays import pack_float_column, pack_int_column, unpack_float_column, unpack_int_column


@pytest.mark.parametrize(
    ("values", "kind", "width"),
    [
        ((), "<u2", 2),
        ((0, 2**16 - 1), "<u2", 2),
        ((1, 2**16), "<u3", 3),
        ((0, 2**24 - 1), "<u3", 3),
        ((0, 2**24), "<i4", 4),
        ((-1, 5), "<i4", 4),
        ((0, 2**31), "<i8", 8),
        ((-(2**63), 2**63 - 1), "<i8", 8),
    ],
)
def test_integers_take_the_width_of_the_largest(values: tuple[int, ...], kind: str, width: int) -> None:
    found, data = pack_int_column([values[:1], values[1:]])
    assert (found, len(data)) == (kind, width * len(values))
    assert tuple(unpack_int_column(found, data)) == values


def test_an_integer_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        pack_int_column([(2**63,)])


@pytest.mark.parametrize(("value", "kind"), [(-0.5, "<f4"), (0.1, "<f8"), (1e300, "<f8"), (float("inf"), "<f4")])
def test_floats_are_single_only_if_nothing_is_lost(value: float, kind: str) -> None:
    assert pack_float_column([(value,)])[0] == kind


@given(st.lists(st.floats(width=32) | st.floats(), max_size=5).map(tuple))
def test_floats_come_back_bit_by_bit(values: tuple[float, ...]) -> None:
    found = unpack_float_column(*pack_float_column([values[:2], values[2:]]))
    assert [struct.pack("<d", value) for value in found] == [struct.pack("<d", value) for value in values]
