"""How many CPU threads compute fastest: on cores that servers or other people use, threads wait for each other."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

TRIALS = 4
"""Pieces of work done with either number in turn, before one is chosen."""
AGAIN = 100
"""After so many more the other number is tried once: the machine may have become quiet, or busy."""


class Threads:
    """Chooses between one thread and `most`, by what either took for work of the same kind."""

    def __init__(self, most: int) -> None:
        self._numbers = sorted({1, most})
        self._seconds = dict.fromkeys(self._numbers, math.inf)
        """For a unit of work: the best of the trials, then the last."""
        self._done = 0

    @contextmanager
    def work(self, size: float) -> Iterator[int]:
        """Computes what is inside with the better number, and leaves one thread behind. `size`: units of work, any."""
        chosen = self._choice()
        torch.set_num_threads(chosen)
        started = time.perf_counter()
        try:
            yield chosen
        finally:
            took = (time.perf_counter() - started) / max(size, 1e-9)
            self._seconds[chosen] = min(took, self._seconds[chosen]) if self._done < TRIALS else took
            self._done += 1
            torch.set_num_threads(1)

    def _choice(self) -> int:
        if self._done < TRIALS:
            return self._numbers[self._done % len(self._numbers)]
        ranked = sorted(self._numbers, key=lambda number: self._seconds[number])
        return ranked[-1] if (self._done - TRIALS) % AGAIN == AGAIN - 1 else ranked[0]
