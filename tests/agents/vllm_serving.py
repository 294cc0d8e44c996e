"""``gymcp serve`` as a user starts it: its process, its printed lines, and the check that nothing is left of it."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

KEY = "a key that it asks for"
GYMCP = Path(sys.executable).with_name("gymcp")
WAIT_S = 900.0
STOP_S = 90.0


@dataclass(frozen=True, kw_only=True)
class Serving:
    process: subprocess.Popen[str]
    lines: queue.Queue[str]

    def line(self, start: str) -> str:
        """The next line with this prefix, without the prefix."""
        seen: list[str] = []
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            line = self.lines.get(timeout=WAIT_S)
            if line.startswith(start):
                return line.removeprefix(start).strip()
            if not line:
                raise AssertionError(f"gymcp serve ended: {' '.join(seen)}")
            seen.append(line)
        raise AssertionError(f"gymcp serve said no '{start}': {' '.join(seen)}")

    def processes(self) -> list[int]:
        """All processes started by gymcp serve, directly or not: their environment names it as the owner."""
        mark = f"GYMCP_OWNER={self.process.pid}-".encode()
        return [pid for pid in _pids() if mark in _environment(pid)]

    def has_processes(self) -> bool:
        """True if there is a process after a short wait: one that is just executing execve has no environment."""
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline:
            if self.processes():
                return True
        return False

    def end(self, signum: int) -> int:
        """The exit code of gymcp serve after the signal."""
        self.process.send_signal(signum)
        return self.process.wait(STOP_S)


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Serving]:
    process = subprocess.Popen(
        [str(GYMCP), "serve", str(folder), "--cpu", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "VLLM_API_KEY": KEY},
    )
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    reader = threading.Thread(target=_read, args=(process, lines))
    reader.start()
    started = Serving(process=process, lines=lines)
    try:
        yield started
    finally:
        if process.poll() is None:
            started.end(signal.SIGTERM)
        reader.join(STOP_S)
        process.stdout.close()


def nothing_is_left(started: Serving, url: str) -> bool:
    """True if nothing is left after a short wait: the kernel needs a moment to end the processes of a killed gymcp."""
    parts = urlsplit(url)
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline:
        with socket.socket() as port:
            if not started.processes() and port.connect_ex((parts.hostname, parts.port)):
                return True
        time.sleep(0.05)
    return False


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
