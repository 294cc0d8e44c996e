"""Length of tests that take a sample: GYMCP_FULL_TESTS=1 has them take all, as `benchmarks/full_tests.py` does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
IS_FULL = os.environ.get("GYMCP_FULL_TESTS") == "1"


def take_spread(items: Sequence[T], count: int) -> list[T]:
    """`count` of the items, evenly spread, the first among them; all items in a full run."""
    if IS_FULL or count >= len(items):
        return list(items)
    return [items[place * len(items) // count] for place in range(count)]
