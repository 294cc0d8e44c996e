"""Every start path played once, as root and as an ordinary user, and unconfined; tests read what was said there."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from equipment import lacking, usable
from length import FULL_TESTS
from ordinary_user import IMPORT_PATH, UID, as_ordinary_user, groups_for
from sandbox_runs import Ended, run_to_end, sandbox_of
from start_paths import START_PATHS

from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.docker.engine_api import socket_path

PLAY_S = 1800.0
Played = Callable[[str, str], dict[str, Any]]


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache in which no environment file was ever run."""
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session", params=["bwrap", "docker"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """A test can name others: see `sandbox_runs.sandbox_of`."""
    return sandbox_of(request.param)


@pytest.fixture(scope="session")
def attack(sandbox: Sandbox) -> Callable[..., Ended]:
    """Runs Python code in the sandbox to its end."""
    return functools.partial(run_to_end, sandbox)


@pytest.fixture(scope="session")
def bwrap() -> Bubblewrap:
    found = usable("bwrap")
    assert isinstance(found, Bubblewrap)
    return found


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Played:
    """(start path, user) -> what was said there: all paths of a sandbox on first use, once for all workers."""
    shared = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent

    def play(path: str, user: str) -> dict[str, Any]:
        sandbox = "none" if path == "none" else START_PATHS[path].sandbox
        if sandbox != "none":
            usable(sandbox)
        if user == "root" and os.getuid() != 0:
            lacking("root", "only root can play as root")
        answer = shared / f"adversarial-{sandbox}-{user}.json"
        with _hold_lock(answer.with_suffix(".lock")):
            if not answer.exists():
                paths = [name for name, each in START_PATHS.items() if each.sandbox == sandbox]
                answer.write_text(_play(",".join(paths or ["none"]), user))
        found: dict[str, Any] = json.loads(answer.read_text())
        assert "failed" not in found, found["failed"]
        played: dict[str, Any] = found[path]
        return played

    return play


@contextlib.contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _play(paths: str, user: str) -> str:
    token = secrets.token_hex(16)
    made = Path(tempfile.mkdtemp(prefix="gymcp-adversarial-"))
    try:
        made.chmod(0o755)
        for name in ("work", "home", "stage"):
            (made / name).mkdir()
        argv = [sys.executable, str(Path(__file__).with_name("harness.py")), paths, str(made / "work"), token]
        argv.append(_set_id_program(made))
        if user == "user" and os.getuid() == 0:
            for name in ("work", "home"):
                os.chown(made / name, UID, UID)
            argv = as_ordinary_user(argv, made / "stage", groups_for(socket_path()))
        kept = ("PATH", "DOCKER_HOST", "TMPDIR", FULL_TESTS)  # TMPDIR: attempts at links need one file system
        env = {name: os.environ[name] for name in kept if name in os.environ}
        env |= {"LANG": "C.UTF-8", "HOME": str(made / "home"), "GYMCP_HOME": str(made / "home"), "A_SECRET": token}
        env["PYTHONPATH"] = IMPORT_PATH
        # a session of its own: what is signalled there must not reach the tests
        done = subprocess.run(
            argv, env=env, cwd="/", capture_output=True, text=True, timeout=PLAY_S, check=False, start_new_session=True
        )
    finally:
        shutil.rmtree(made)
    return done.stdout if done.returncode == 0 else json.dumps({"failed": done.stderr[-3000:]})


def _set_id_program(folder: Path) -> str:
    """A program that would run as root for every user; a dash if this user cannot make one."""
    if os.getuid() != 0:
        return "-"
    path = folder / "set-id"
    shutil.copy("/usr/bin/id", path)
    path.chmod(0o4755)
    return str(path)
