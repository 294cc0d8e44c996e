"""A folder's growth is found soon, also on a machine that gives this process little time."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import Any

import pytest
from equipment import lacking

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


@pytest.fixture
def own_workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that counts as the workspace of this process."""
    monkeypatch.setattr(disk_growth, "_WORKSPACE_PREFIX", f"{tmp_path}/")
    monkeypatch.setattr(AddedBytes, "_free_bytes", lambda _: 10**12)  # whatever others write to the disk
    return tmp_path


def walk_three_times(folder: Path, clock: Clock) -> str | None:
    added = AddedBytes(folder, ALLOWED_BYTES, lambda: [os.getpid()])
    said = None
    for _ in range(3):
        while (said := said or added.step(folders=1)) is None and added._walk is not None:
            pass
        clock.now += 61.0  # longer than any rest
    return said


def test_a_descriptor_that_stays_in_flight_is_refused(monkeypatch: pytest.MonkeyPatch, own_workspace: Path) -> None:
    clock = Clock(monkeypatch, tick_s=0.0)
    assert walk_three_times(own_workspace, clock) is None
    one, other = socket.socketpair()
    with one, other, (own_workspace / "file").open("wb") as file:
        socket.send_fds(one, [b"x"], [file.fileno()])
        assert walk_three_times(own_workspace, clock) == (
            "disk: it keeps 1 descriptors in a socket, where they cannot be measured"
        )


@contextlib.contextmanager
def map_without_a_name(folder: Path, count: int) -> Iterator[None]:
    """Files of `ALLOWED_BYTES` each, of which this process maps a page and has no descriptor."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    pages = []
    for number in range(count):
        path = folder / f"{number}"
        path.write_bytes(bytes(ALLOWED_BYTES))
        with path.open("rb") as file:
            pages.append(libc.mmap(None, ctypes.c_size_t(4096), 1, 1, file.fileno(), ctypes.c_long(0)))
        path.unlink()
    try:
        yield
    finally:
        for page in pages:
            libc.munmap(ctypes.c_void_p(page), ctypes.c_size_t(4096))


def test_mapped_files_without_a_name_are_measured(monkeypatch: pytest.MonkeyPatch, own_workspace: Path) -> None:
    links = Path("/proc/self/map_files")
    try:
        next(links.iterdir()).stat()
    except PermissionError:
        lacking("root", "only root of the host can follow the links of mapped files")
    with map_without_a_name(own_workspace, 2):
        said = walk_three_times(own_workspace, Clock(monkeypatch, tick_s=0.0))
    assert said == "disk: the workspace grew by more than 0 MB"


@pytest.mark.parametrize("count", [1, 2])
def test_an_ordinary_user_allows_one_file_of_unknown_size(
    count: int, monkeypatch: pytest.MonkeyPatch, own_workspace: Path
) -> None:
    def refuse(place: Path, **_: Any) -> os.stat_result:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(place))

    class Refused(PosixPath):
        stat = refuse

    find = disk_growth._find_unnamed_mappings
    monkeypatch.setattr(
        disk_growth, "_find_unnamed_mappings", lambda process: ((inode, Refused(link)) for inode, link in find(process))
    )
    with map_without_a_name(own_workspace, count):
        said = walk_three_times(own_workspace, Clock(monkeypatch, tick_s=0.0))
    refused = "disk: it keeps 2 mapped files and 0 closed processes or descriptors that cannot be measured"
    assert said == (None if count == 1 else refused)
