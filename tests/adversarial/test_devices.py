"""The device nodes of the machine are no server's, whoever they belong to. Tried in mount namespaces made for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from equipment import lacking
from ordinary_user import UID, as_ordinary_user

from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.process_owner import SERVER_ID

_OTHERS_NODES = """
set -e
mount --make-rprivate /
nodes=$1; owner=$2; rest=$3; nowhere=$4; shift 4
mount -t tmpfs -o mode=755 none "$nodes"
for name in null zero full random urandom tty; do
    cp -a "/dev/$name" "$nodes/$name"
    chmod 666 "$nodes/$name"
    chown "$owner" "$nodes/$name"
    mount --bind "$nodes/$name" "/dev/$name"
    owner=$rest
done
for folder in $nowhere; do mount -t tmpfs -o nodev,mode=1777 none "$folder"; done
exec "$@"
"""
WITHOUT_SETUID = ("setpriv", "--inh-caps", "-setuid", "--bounding-set", "-setuid")
"""A root that may not give servers an id of their own."""
HELD = {"changed": "[]", "modes": ["0o666"]}
Tried = Callable[..., dict[str, Any]]


@pytest.fixture
def tried(bwrap: Bubblewrap) -> Iterator[Tried]:
    """Attempts that succeed for servers if /dev/null and the rest belong to these users.

    `nowhere`: no file system at hand allows nodes.
    """
    if os.getuid() != 0:
        lacking("root", "only root can make device nodes of another owner")
    base = Path(tempfile.mkdtemp(prefix="gymcp-devices-"))
    base.chmod(0o755)

    def run(
        null: int, rest: int, *, as_user: bool = False, first: tuple[str, ...] = (), nowhere: bool = False
    ) -> dict[str, Any]:
        places = {name: base / name for name in ("nodes", "stage", "home", "tmp")}
        for place in places.values():
            place.mkdir()
        argv = [sys.executable, str(Path(__file__).with_name("device_owners.py"))]
        if as_user:
            for name in ("home", "tmp"):
                os.chown(places[name], UID, UID)
            argv = as_ordinary_user(argv, places["stage"])
        closed = f"{places['home']} {places['tmp']}" if nowhere else ""
        others = ["unshare", "--mount", "sh", "-c", _OTHERS_NODES, "sh", str(places["nodes"]), str(null), str(rest)]
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(places["home"])}
        env |= {"GYMCP_HOME": str(places["home"]), "TMPDIR": str(places["tmp"])}
        command = [*others, closed, *first, *argv]
        done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    yield run
    shutil.rmtree(base)


@pytest.mark.parametrize(("null", "rest"), [(0, 0), (65534, 0), (0, SERVER_ID), (SERVER_ID, 4711)])
def test_no_owner_of_a_device_can_change_its_mode(tried: Tried, null: int, rest: int) -> None:
    assert tried(null, rest) == {"exec": HELD, "fork": HELD}


@pytest.mark.parametrize(("null", "rest"), [(0, 0), (65534, 0), (0, 65534)])
def test_nor_by_servers_that_have_roots_id(tried: Tried, null: int, rest: int) -> None:
    assert tried(null, rest, first=WITHOUT_SETUID) == {"exec": HELD, "fork": HELD}


def test_nor_by_servers_of_an_ordinary_user(tried: Tried) -> None:
    assert tried(0, 0, as_user=True) == {"exec": HELD, "fork": HELD}


def test_a_user_who_owns_one_is_refused_by_name(tried: Tried) -> None:
    said = tried(0, UID, as_user=True)["exec"]["refused"]
    assert said.startswith("SandboxUnavailable: bwrap: device nodes: /dev/zero, ")
    assert f"belong to user {UID}, as servers do on it" in said
    assert "run gymcp as another user, or use --sandbox docker" in said


def test_servers_of_the_owner_are_refused_if_no_other_nodes_can_be_made(tried: Tried) -> None:
    assert "SandboxUnavailable: bwrap: device nodes: " in tried(0, SERVER_ID, nowhere=True)["exec"]["refused"]
