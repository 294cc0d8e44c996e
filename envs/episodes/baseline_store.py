"""Where baselines are kept: digests that fresh worlds must have, by what the worlds are made of."""

from __future__ import annotations

import fcntl
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path

from gymcp.paths import gymcp_home


class BaselineBook:
    """Baselines in a file of JSON lines that several processes may add to; the first that was believed counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] = {}
        self._read_to = 0

    def get(self, identity: str) -> str | None:
        """The world key of the baseline; None where there is none yet."""
        if identity not in self._known and self._path.exists():
            with self._path.open("rb") as file:
                self._read(file.fileno())
        return self._known.get(identity)

    def add(self, identity: str, world_key: str, names: dict[str, str]) -> str:
        """The baseline as it is recorded now: another process may have been first."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._read(file.fileno())
            if identity not in self._known:
                line = json.dumps({"id": identity, "world_key": world_key, **names})
                torn = self._read_to < os.fstat(file.fileno()).st_size
                file.write(b"\n" * torn + line.encode() + b"\n")
                file.flush()
                self._read(file.fileno())
        return self._known[identity]

    def _read(self, fd: int) -> None:
        """What has come since; a line without an end is left: another process may be writing it."""
        data = os.pread(fd, max(0, os.fstat(fd).st_size - self._read_to), self._read_to)
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for record in _records(whole):
            self._known.setdefault(record["id"], record["world_key"])


def _records(lines: bytes) -> Iterator[dict[str, str]]:
    for line in lines.splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # torn by a crash
            continue
        if isinstance(record, dict) and isinstance(record.get("id"), str) and isinstance(record.get("world_key"), str):
            yield record


def baseline_book() -> BaselineBook:
    """The one of this machine's cache."""
    return _book(gymcp_home() / "baselines")


@functools.cache
def _book(folder: Path) -> BaselineBook:
    return BaselineBook(folder / "baselines.jsonl")
