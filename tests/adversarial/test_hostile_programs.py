"""Every attempt of the list fails in an agent program, too, and those that only programs can make have a control."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import inside_files
import inside_kernel
import inside_network
import inside_processes
import pytest
from inside import ATTEMPTS
from inside_programs import ATTEMPTS_OF_PROGRAMS

from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap

PLAYED = (inside_files, inside_kernel, inside_network, inside_processes)
"""Imported for their entries in the table, whose controls are in test_attempts.py."""
PLAY_S = 600.0


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="gymcp-programs-"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def play(sandbox: str, folder: Path) -> dict[str, Any]:
    """Results of the attempts, as the program tells them: name -> [achieved, words]."""
    set_id = "-"
    if os.getuid() == 0:
        shutil.copy("/usr/bin/id", folder / "set-id")
        (folder / "set-id").chmod(0o4755)
        set_id = str(folder / "set-id")
    token = secrets.token_hex(16)
    argv = [sys.executable, str(Path(__file__).with_name("program_harness.py")), sandbox, str(folder), token, set_id]
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(folder), "GYMCP_HOME": str(folder / "home")}
    env["A_SECRET"] = token
    done = subprocess.run(
        argv, env=env, cwd="/", capture_output=True, text=True, timeout=PLAY_S, check=False, start_new_session=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["waits"]  # the other episode goes on
    return dict(found["attempts"])


def test_no_attempt_of_a_confined_program_succeeds(folder: Path, bwrap: Bubblewrap, subtests: pytest.Subtests) -> None:
    attempts = play(bwrap.name, folder)
    assert attempts.keys() == (ATTEMPTS.keys() - {"signal_everyone"}) | ATTEMPTS_OF_PROGRAMS.keys()
    for name, (achieved, said) in attempts.items():
        with subtests.test(name):
            assert achieved is False, f"{name}: {achieved}: {said}"


def test_unconfined_the_same_attempts_succeed(folder: Path, subtests: pytest.Subtests) -> None:
    for name, (achieved, said) in play("none", folder).items():
        with subtests.test(name):
            assert achieved is True, f"{name}: {achieved}: {said}"
