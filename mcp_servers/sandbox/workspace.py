"""How much a server has added to a host folder, measured a slice at a time so that no walk holds up the event loop."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

_SLICE_S = 0.002
_BATCH = 64
_REST, _SHORT_REST = 200, 20
"""A walk is followed by a rest this many times as long, for each folder: half a percent of a core for all of them
together, five percent while free space is being lost."""
_LEAST_REST_S, _LONGEST_REST_S = 2.0, 60.0
ENTRY_BYTES = 4096
"""At least, per file: a million empty ones are not free."""


class AddedBytes:
    """What is in a folder now minus what was there at the first walk; symbolic links are not followed.

    ``step`` goes on with the walk under way, or begins one when its time has come: when the rest is over, or sooner
    where the file system has lost more free space than is still allowed.
    """

    def __init__(self, folder: Path, allowed_bytes: int) -> None:
        self._folder = folder
        self._allowed = allowed_bytes
        self._walk: Iterator[int] | None = walk_bytes(folder)
        self._walked = 0
        self._walk_s = 0.0
        self._last_walk = 0.0
        self._free_at_walk = self._free_bytes()
        self._at_start: int | None = None
        self.added = 0

    def step(self, *, folders: int) -> bool:
        """True once more has been added than is allowed. ``folders`` says how many are measured by this process."""
        begin = time.monotonic()
        if self._walk is None:
            rested = begin - self._last_walk
            lost = self._free_at_walk - self._free_bytes()
            if lost > max(self._allowed - self.added, self._allowed // 8):
                due = self._walk_s * _SHORT_REST * folders
            else:
                due = max(self._walk_s * _REST * folders, _LEAST_REST_S)
            if rested < min(due, _LONGEST_REST_S):
                return False
            self._walk, self._walked, self._walk_s = walk_bytes(self._folder), 0, 0.0
            self._free_at_walk = self._free_bytes()
        for size in self._walk:
            self._walked += size
            if time.monotonic() - begin > _SLICE_S:
                self._walk_s += time.monotonic() - begin
                return self._exceeds(self._walked)  # far too much is seen before the walk is over
        self._walk = None
        self._walk_s += time.monotonic() - begin
        self._last_walk = time.monotonic()
        if self._at_start is None:
            self._at_start = self._walked
        self.added = self._walked - self._at_start
        return self._exceeds(self._walked)

    def _exceeds(self, walked: int) -> bool:
        return self._at_start is not None and walked - self._at_start > self._allowed

    def _free_bytes(self) -> int:
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return 0
        return found.f_bfree * found.f_frsize


def walk_bytes(folder: Path) -> Iterator[int]:
    """Sizes, summed over a few files at a time. A sparse file counts as long as it says it is: copies of it will be."""
    pending = [str(folder)]
    total = seen = 0
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    total += max(found.st_size, found.st_blocks * 512, ENTRY_BYTES)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                seen += 1
                if seen % _BATCH == 0:
                    yield total
                    total = 0
    yield total
