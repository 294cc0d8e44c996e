"""Sandboxes that faulty servers are put into; a missing one is skipped, or fails if the machine must have it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from equipment import usable


@pytest.fixture(scope="session")
def require() -> Callable[[str], object]:
    """Skips the test, or fails it, if the sandbox of that name cannot be used."""
    return usable
