"""Processes that a benchmark has started: servers that print their port, and the memory of all descendants."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def run_port_server(*words: str, stderr: int | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A Python program that serves on loopback and prints its port in its first line; and its address.

    It is killed when the context ends. It may serve for as long as its standard input is open.
    """
    command = [sys.executable, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def measure_descendants() -> tuple[int, float]:
    """(number of this process's descendants, their proportional set size in MiB)."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    descendants, waiting = [], [os.getpid()]
    while waiting:
        children = parents.get(waiting.pop(), [])
        descendants += children
        waiting += children
    return len(descendants), sum(map(_measure_memory, descendants))


def _measure_memory(pid: int) -> float:
    """MiB; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
