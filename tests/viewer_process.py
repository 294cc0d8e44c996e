"""A viewer: a fork of a process that has imported it, or the real command."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import warm_command

STOP_S = 60.0


@contextmanager
def run_viewer(*arguments: str | Path, cwd: Path | None = None) -> Iterator[str]:
    """Address of a viewer of these runs, which is ended as by Ctrl-C. `arguments`: runs and options."""
    ours, theirs = os.pipe()
    words = ["view", "--no-open", *map(str, arguments)]
    with os.fdopen(ours, encoding="utf-8") as said:
        viewer = warm_command.start(words, theirs, theirs, cwd=cwd, env=os.environ)
        os.close(theirs)
        try:
            yield _find_address(said)
        finally:
            with suppress(ProcessLookupError):  # it has ended with an error
                os.kill(viewer.pid, signal.SIGINT)
            status = viewer.wait(STOP_S)
        assert status == 0, said.read()


@contextmanager
def run_real_viewer(
    *arguments: str | Path,
    gymcp: Path = warm_command.GYMCP,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`run_viewer` with the real command; also gives its process."""
    command = [str(gymcp), "view", *map(str, arguments)]
    variables = {**os.environ, **(environment or {})}
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables
    )
    assert process.stdout is not None
    try:
        yield _find_address(process.stdout), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=STOP_S)


def _find_address(said: Iterable[str]) -> str:
    seen = []
    for line in said:
        if line.startswith("http://127.0.0.1:"):
            return line.strip()
        seen.append(line)
    raise AssertionError("".join(seen))
