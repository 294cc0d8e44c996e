"""A folder's growth is found soon, also on a machine that gives this process little time."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gymcp.mcp_servers.sandbox import disk_growth
from gymcp.mcp_servers.sandbox.disk_growth import AddedBytes

ALLOWED_BYTES = 100_000
FOLDERS = 8


class Clock:
    """Stands in for the clock of the module; ``tick_s`` pass with each look at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tick_s: float) -> None:
        self.now, self._tick_s = 1_000.0, tick_s
        monkeypatch.setattr(disk_growth, "time", self)

    thread_time = staticmethod(time.thread_time)

    def monotonic(self) -> float:
        self.now += self._tick_s
        return self.now


def test_waiting_for_the_processor_does_not_lengthen_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch, tick_s=0.1)
    added = AddedBytes(tmp_path, ALLOWED_BYTES)
    while added.step(folders=FOLDERS) is None and added._walk is not None:
        pass
    (tmp_path / "large").write_bytes(bytes(2 * ALLOWED_BYTES))
    clock.now += 3.0
    assert "grew by more than" in str(added.step(folders=FOLDERS) or added.step(folders=FOLDERS))


def test_size_of_closed_folder_counts_once_it_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    open_file, start = os.open, subprocess.Popen

    def refuse_closed(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(path, *args, **kwargs)

    clock = Clock(monkeypatch, tick_s=0.0)
    added = AddedBytes(tmp_path, ALLOWED_BYTES)
    added.step(folders=1)
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "large").write_bytes(bytes(2 * ALLOWED_BYTES))
    monkeypatch.setattr(os, "open", refuse_closed)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **rest: start(command[3:], **rest))
    clock.now += 3.0
    said = None
    try:
        for _ in range(3_000):
            if (said := added.step(folders=1)) is not None:
                break
            time.sleep(0.01)
    finally:
        added.close()
    assert "grew by more than" in str(said)
