"""A viewer in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def run_viewer(
    *runs: Path, options: tuple[str, ...] = ("--no-open",), environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Address of a viewer of these runs, and its process, which is ended as by Ctrl-C."""
    command = [str(Path(sys.executable).with_name("gymcp")), "view", *options, *map(str, runs)]
    variables = {**os.environ, **(environment or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("http://127.0.0.1:"):
                yield line.strip(), process
                break
        else:
            raise AssertionError(process.communicate(timeout=30))
    finally:
        if process.poll() is None:
            process.send_signal(2)
        process.communicate(timeout=60)
