"""The store of baselines: digests that fresh states must have, by the digest of what the states are made from."""

from __future__ import annotations

import fcntl
import functools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from gymcp.paths import gymcp_home


class BaselineStore:
    """Baselines in a file of JSON lines that several processes may append to; the first line of an identity counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._baselines: dict[str, str] = {}
        self._read_to = 0
        """Bytes of the file that have been read."""

    def get(self, identity: str) -> str | None:
        """The world key of the baseline; None if there is none yet."""
        if identity not in self._baselines and self._path.exists():
            with self._path.open("rb") as file:
                self._read(file.fileno())
        return self._baselines.get(identity)

    def add(self, identity: str, world_key: str, names: Mapping[str, str]) -> str:
        """Records the baseline and returns the recorded one: another process may have been first.

        `names`: what is recorded beside it for people.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._read(file.fileno())
            if identity not in self._baselines:
                line = json.dumps({"id": identity, "world_key": world_key, **names})
                torn = self._read_to < os.fstat(file.fileno()).st_size
                file.write(b"\n" * torn + line.encode() + b"\n")
                file.flush()
                self._read(file.fileno())
        return self._baselines[identity]

    def _read(self, fd: int) -> None:
        """Reads the lines added since the last time, except one without an end: another process may be writing it."""
        data = os.pread(fd, max(0, os.fstat(fd).st_size - self._read_to), self._read_to)
        lines = data[: data.rfind(b"\n") + 1]
        self._read_to += len(lines)
        for record in _parse_records(lines):
            self._baselines.setdefault(record["id"], record["world_key"])


def _parse_records(lines: bytes) -> Iterator[dict[str, str]]:
    for line in lines.splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # torn by a crash
            continue
        if isinstance(record, dict) and isinstance(record.get("id"), str) and isinstance(record.get("world_key"), str):
            yield record


def baseline_store() -> BaselineStore:
    """The store in this machine's cache."""
    return _open_store(gymcp_home() / "baselines")


@functools.cache
def _open_store(folder: Path) -> BaselineStore:
    return BaselineStore(folder / "baselines.jsonl")
