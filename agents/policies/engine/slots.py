"""Which tokens each slot of the engine holds, and where a new prompt goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


class Slots:
    """The tokens behind the keys and values of every slot. A slot is busy while a request is in it; then it is idle and
    keeps what it holds until another request needs the place, the one unused for longest first.
    """

    def __init__(self, count: int, max_context: int) -> None:
        self.tokens: Ids = np.zeros((count, max_context), dtype=np.int32)
        self.length = np.zeros(count, dtype=np.int64)
        """Tokens that are known, per slot."""
        self.filled = np.zeros(count, dtype=np.int64)
        """Tokens whose keys and values are in the cache, from the first on."""
        self.busy = np.zeros(count, dtype=bool)
        self._used = np.zeros(count, dtype=np.int64)
        self._tick = 0

    def common(self, ids: Ids) -> NDArray[np.int64]:
        """[slots]: with how many of its first tokens each slot begins as `ids` does."""
        same = self.tokens[:, : len(ids)] == ids
        first_other = np.where(same.all(axis=1), len(ids), same.argmin(axis=1))
        return np.minimum(first_other, self.length)

    def place(self, ids: Ids) -> int | None:
        """A slot for these tokens, now busy: one whose whole content they continue, else the longest unused.

        It keeps what it holds in common with `ids`. None: every slot is busy.
        """
        idle = ~self.busy
        if not idle.any():
            return None
        common = self.common(ids)
        continued = idle & (self.filled > 0) & (common >= self.filled)
        if continued.any():
            slot = int(np.where(continued, self.filled, -1).argmax())
        else:
            slot = int(np.where(idle, self._used, np.iinfo(np.int64).max).argmin())
        self.busy[slot] = True
        self.tokens[slot, : len(ids)] = ids
        self.length[slot] = len(ids)
        # the last token is always computed: its logits are what is asked for
        self.filled[slot] = min(int(self.filled[slot]), int(common[slot]), len(ids) - 1)
        return slot

    def source(self, slot: int, among: Sequence[int] | None = None) -> tuple[int, int]:
        """(other slot, tokens): who holds, or will hold, the longest common beginning with this one; (-1, 0) if nobody.

        Counts only what is more than the slot has in the cache itself, and leaves the last token out.
        """
        known = int(self.length[slot])
        common = np.minimum(self.common(self.tokens[slot, :known]), known - 1)
        common[slot] = 0
        if among is not None:
            others = np.ones(len(common), dtype=bool)
            others[list(among)] = False
            common[others] = 0
        best = int(common.argmax())
        return (best, int(common[best])) if common[best] > self.filled[slot] else (-1, 0)

    def append(self, slot: int, token: int) -> None:
        """One more token is known."""
        self.tokens[slot, self.length[slot]] = token
        self.length[slot] += 1

    def release(self, slot: int) -> None:
        """The request has left; what is in the cache is kept."""
        self._tick += 1
        self._used[slot] = self._tick
        self.busy[slot] = False
        self.length[slot] = self.filled[slot]

    def forget(self) -> None:
        """Nothing that is in the cache is of use any more; busy slots still know their tokens."""
        self.filled[:] = 0
        self.length[~self.busy] = 0
