"""The process that holds a vLLM server for an actor, with a program in place of vLLM's interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymcp.agents.policies.specs import TRAINED
from gymcp.agents.policies.vllm.install import CPU, vllm_folder
from gymcp.scale import vllm_process

STARTING = f"""#!/bin/sh
[ "$1" = -c ] && exec {sys.executable} "$@"
echo $$ > "$FIFO"
exec sleep 600
"""
WAIT_S = 60.0
FAILING = """#!/bin/sh
echo "OSError: no weights"
exit 3
"""


@contextlib.contextmanager
def hold(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """The process, with this program for vLLM's interpreter; as in an actor's thread, SIGINT is blocked."""
    monkeypatch.setenv("GYMCP_HOME", str(folder / "home"))
    monkeypatch.setenv("TMPDIR", str(folder / "temporary"))
    (folder / "temporary").mkdir()
    python = vllm_folder(CPU) / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(program)
    python.chmod(0o755)
    (vllm_folder(CPU) / "complete").touch()
    command = [sys.executable, "-P", "-m", vllm_process.__name__, str(TRAINED), "cpu"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with process:
        yield process


def test_a_server_that_is_starting_ends_with_the_pipe_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv("FIFO", str(tmp_path / "fifo"))
    with hold(STARTING, tmp_path, monkeypatch) as process:
        server = os.pidfd_open(int((tmp_path / "fifo").read_text()))
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert select.select([process.stdout], [], [], WAIT_S)[0]
        assert process.stdout.read() == ""
    try:
        assert select.select([server], [], [], WAIT_S)[0]
    finally:
        os.close(server)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert list((tmp_path / "home" / "vllm").glob(".untied-*")) == []


def test_a_server_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hold(FAILING, tmp_path, monkeypatch) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.read())
    assert said["error"].startswith(f"vllm: {TRAINED}: the server ended with code 3; ")
    assert said["error"].endswith("OSError: no weights")
