"""Length of tests that take a sample; in a full run, as in `benchmarks/full_tests.py`, they take all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
FULL_TESTS = "GYMCP_FULL_TESTS"
"""Environment variable: "1" asks for a full run."""
IS_FULL = os.environ.get(FULL_TESTS) == "1"


def take_spread(items: Sequence[T], count: int) -> list[T]:
    """`count` of the items, evenly spread, the first among them; all items in a full run."""
    if IS_FULL or count >= len(items):
        return list(items)
    return [items[place * len(items) // count] for place in range(count)]
