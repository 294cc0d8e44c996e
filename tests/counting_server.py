"""A server for tests that counts."""

from __future__ import annotations

import os


class Counter:
    """A server that declares its state, can be lost, and can reach a state that no replay reaches again."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def add(self, amount: int) -> int:
        """Count on."""
        self.count += amount
        return self.count

    def drift(self) -> int:
        """Add a number nobody can foresee."""
        self.count += 1 + int.from_bytes(os.urandom(6), "big")
        return self.count

    def crash(self) -> str:
        """End the process."""
        os._exit(3)
