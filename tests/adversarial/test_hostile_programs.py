"""Attempts fail in an agent program, too, as root and as an ordinary user.

These are all of the list but those on the protocol, which a program does not speak. Those that only programs can make
have a control here.
"""

from __future__ import annotations

import json
import os
import re
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
import inside_mounts
import inside_network
import inside_processes
import pytest
from equipment import lacking
from expected import GREED
from inside import ATTEMPTS
from inside_programs import ATTEMPTS_OF_PROGRAMS
from length import FULL_TESTS
from ordinary_user import IMPORT_PATH, UID, as_ordinary_user

from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap

PLAYED = (inside_files, inside_mounts, inside_kernel, inside_network, inside_processes)
"""Imported for their entries in the table, whose controls are in test_attempts.py."""
PLAY_S = 600.0


FOR_PROGRAMS = {
    "flood_of_errors": "^result: 200 MB$",
    "leave_a_daemon": "^result: left; after: False$",
    "use_up_inodes": "^agent_error: the program failed: (memory|disk): ",
}
"""Reports that differ: a program answers once, a daemon that it leaves is looked for at its end alone, and its working
folder is the host's, where each file counts as disk."""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="gymcp-programs-"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def play(sandbox: str, folder: Path, user: str) -> dict[str, Any]:
    """The harness's report on attempts, name -> [achieved, words], and on greed, name -> words."""
    set_id = "-"
    if os.getuid() == 0:
        shutil.copy("/usr/bin/id", folder / "set-id")
        (folder / "set-id").chmod(0o4755)
        set_id = str(folder / "set-id")
    own = folder / "own"
    own.mkdir()
    token = secrets.token_hex(16)
    argv = [sys.executable, str(Path(__file__).with_name("program_harness.py")), sandbox, str(own), token, set_id]
    if user == "user" and os.getuid() == 0:
        os.chown(own, UID, UID)
        (folder / "stage").mkdir()
        argv = as_ordinary_user(argv, folder / "stage")
    env = {"PATH": _path_of_others(), "LANG": "C.UTF-8", "HOME": str(own), "GYMCP_HOME": str(own / "home")}
    env |= {"A_SECRET": token, "PYTHONPATH": IMPORT_PATH, FULL_TESTS: os.environ.get(FULL_TESTS, "0")}
    done = subprocess.run(
        argv, env=env, cwd="/", capture_output=True, text=True, timeout=PLAY_S, check=False, start_new_session=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["waits"]  # the other episode goes on
    return found


def _path_of_others() -> str:
    """PATH without the harness's virtual environment: if it is activated, `python3` is shown from there."""
    own = str(Path(sys.executable).parent)
    return os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if folder != own)


@pytest.mark.parametrize("user", ["root", "user"])
def test_no_attempt_of_a_confined_program_succeeds(
    user: str, folder: Path, bwrap: Bubblewrap, subtests: pytest.Subtests
) -> None:
    if user == "root" and os.getuid() != 0:
        lacking("root", "only root can play as root")
    found = play(bwrap.name, folder, user)
    attempts = found["attempts"]
    assert attempts.keys() == (ATTEMPTS.keys() - {"signal_everyone"}) | ATTEMPTS_OF_PROGRAMS.keys()
    for name, (achieved, said) in attempts.items():
        with subtests.test(name):
            assert achieved is False, f"{name}: {achieved}: {said}"
    for name, greed in GREED.items():
        with subtests.test(name):
            wanted = re.sub(r"Server\S*: \.\*", "agent_error: the program failed: ", greed.reported)
            assert re.search(FOR_PROGRAMS.get(name, wanted), found["greed"][name], re.DOTALL), found["greed"][name]


def test_unconfined_the_same_attempts_succeed(folder: Path, subtests: pytest.Subtests) -> None:
    for name, (achieved, said) in play("none", folder, "root")["attempts"].items():
        with subtests.test(name):
            assert achieved is True, f"{name}: {achieved}: {said}"
