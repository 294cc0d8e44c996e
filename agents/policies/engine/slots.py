"""The tokens in each slot of the engine, and the choice of a slot for a new prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
CACHE_CHUNK_TOKENS = 256
"""Number of tokens to whose multiples the cache of keys and values grows; a multiple of the width of every panel."""


def round_capacity(min_tokens: int) -> int:
    """The capacity of a slot, in tokens, that has room for this many."""
    return -(-min_tokens // CACHE_CHUNK_TOKENS) * CACHE_CHUNK_TOKENS


class Slots:
    """The tokens behind the keys and values of every slot.

    A slot is busy while a request is in it. An idle slot keeps its content until another request needs the slot; the
    least recently used slot is taken first.
    """

    def __init__(self, count: int, max_context: int) -> None:
        self.tokens: Ids = np.zeros((count, max_context), dtype=np.int32)
        self.length = np.zeros(count, dtype=np.int64)
        """Number of known tokens, per slot."""
        self.filled = np.zeros(count, dtype=np.int64)
        """Number of tokens, from the first on, whose keys and values are in the cache, per slot."""
        self.busy = np.zeros(count, dtype=bool)
        self._used = np.zeros(count, dtype=np.int64)
        self._tick = 0

    def prefix_lengths(self, ids: Ids) -> NDArray[np.int64]:
        """[slots]: the number of tokens in the common prefix of each slot and `ids`."""
        same = self.tokens[:, : len(ids)] == ids
        first_other = np.where(same.all(axis=1), len(ids), same.argmin(axis=1))
        return np.minimum(first_other, self.length)

    def assign(self, ids: Ids) -> int | None:
        """A slot for these tokens, now busy: one whose whole content they continue, else the least recently used.

        The slot keeps its common prefix with `ids`. None if every slot is busy.
        """
        idle = ~self.busy
        if not idle.any():
            return None
        common = self.prefix_lengths(ids)
        continues = idle & (self.filled > 0) & (common >= self.filled)
        if continues.any():
            slot = int(np.where(continues, self.filled, -1).argmax())
        else:
            slot = int(np.where(idle, self._used, np.iinfo(np.int64).max).argmin())
        self.busy[slot] = True
        self.tokens[slot, : len(ids)] = ids
        self.length[slot] = len(ids)
        # the last token is always computed, because its logits are needed
        self.filled[slot] = min(int(self.filled[slot]), int(common[slot]), len(ids) - 1)
        return slot

    def find_source(self, slot: int, among: Sequence[int] | None = None) -> tuple[int, int]:
        """(other slot, tokens): the slot that holds, or will hold, the longest common prefix with this one.

        (-1, 0) if no slot has a longer prefix than this slot has in the cache itself. The last token never counts.
        """
        known = int(self.length[slot])
        common = np.minimum(self.prefix_lengths(self.tokens[slot, :known]), known - 1)
        common[slot] = 0
        if among is not None:
            others = np.ones(len(common), dtype=bool)
            others[list(among)] = False
            common[others] = 0
        best = int(common.argmax())
        return (best, int(common[best])) if common[best] > self.filled[slot] else (-1, 0)

    def append(self, slot: int, token: int) -> None:
        """Add a token to the slot."""
        self.tokens[slot, self.length[slot]] = token
        self.length[slot] += 1

    def release(self, slot: int) -> None:
        """Make the slot idle; its keys and values stay in the cache."""
        self._tick += 1
        self._used[slot] = self._tick
        self.busy[slot] = False
        self.length[slot] = self.filled[slot]

    def forget(self) -> None:
        """Discard all keys and values; busy slots keep their tokens."""
        self.filled[:] = 0
        self.length[~self.busy] = 0
