"""A server for tests that counts, and ends when it is copied."""

from __future__ import annotations

import os


class Fragile:
    """A server that declares its state. Once armed, its process ends as soon as it is to fork."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def add(self, amount: int) -> int:
        """Count on."""
        self.count += amount
        return self.count

    def arm(self) -> str:
        """End the process at its next fork."""
        os.register_at_fork(before=lambda: os._exit(3))
        return "armed"
