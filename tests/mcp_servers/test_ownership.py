"""A folder that is given to servers gives away nothing of the host: tried in a mount namespace made for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from equipment import lacking

import gymcp
from gymcp.mcp_servers.sandbox.rootfs import NOBODY
from gymcp.mcp_servers.sandbox.users.identity import describe_identity, identity
from gymcp.process_owner import SERVER_ID

CODE = str(Path(gymcp.__file__).parents[1])
_HOST = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$1"
cd "$1"
mkdir -p host/dev host/etc workspace/dev workspace/etc workspace/tmpfs workspace/folder
cp -a /dev/null /dev/zero host/dev
for file in host/etc/passwd workspace/null workspace/passwd workspace/own workspace/folder/own; do : > $file; done
mount --bind host/dev workspace/dev
mount --bind host/etc workspace/etc
mount --bind host/dev/null workspace/null
mount --bind host/etc/passwd workspace/passwd
mount -t tmpfs none workspace/tmpfs
: > workspace/tmpfs/file
cp -a /dev/zero workspace/zero
shift
exec "$@"
"""
"""A host made on the spot, whose folders, files and nodes are mounted in a workspace; one node is in it."""
_GIVE = """
import asyncio, contextlib, json, os, pathlib, sys
from gymcp.errors import GymcpError
from gymcp.mcp_servers.sandbox import Launch
from gymcp.mcp_servers.sandbox.docker.container import start
from gymcp.mcp_servers.sandbox.users.ownership import give_to_servers, lend

base, way = pathlib.Path(sys.argv[1]), sys.argv[2]
owners = lambda: {str(path.relative_to(base)): path.lstat().st_uid for path in sorted(base.rglob("*"))}

async def lend_it():
    async with lend([base / "workspace", base / "workspace/null"]):
        given = owners()
    return given

given = None
if way == "lend":
    given = asyncio.run(lend_it())
elif way == "seed":
    give_to_servers(base / "workspace")
else:
    with contextlib.suppress(GymcpError):
        start(Launch(argv=("true",), workspace=base / "workspace"), init=False)
print(json.dumps([given, owners()]))
"""
_OWN = ("workspace", "workspace/folder", "workspace/folder/own", "workspace/own")


def given_away(base: Path, way: str) -> list[dict[str, int] | None]:
    """Paths that are not root's while the workspace is lent (None: it was given for good), and afterwards."""
    if os.getuid() != 0:
        lacking("root", "only root can make a host to be given away")
    base.mkdir()
    command = ["unshare", "--mount", "sh", "-c", _HOST, "sh", str(base), sys.executable, "-c", _GIVE, str(base), way]
    env = os.environ | {
        "DOCKER_HOST": "unix:///nowhere/docker.sock",
        "PYTHONPATH": str(Path(gymcp.__file__).parents[1]),
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, int] | None] = json.loads(done.stdout)
    return [each and {path: owner for path, owner in each.items() if owner} for each in found]


@pytest.mark.parametrize(("way", "user"), [("lend", SERVER_ID), ("seed", SERVER_ID), ("docker", NOBODY)])
def test_a_given_workspace_gives_away_no_device_and_nothing_that_is_mounted_there(
    tmp_path: Path, way: str, user: int
) -> None:
    if user == SERVER_ID and identity() is None:
        pytest.skip(describe_identity())
    given = dict.fromkeys(_OWN, user)
    assert given_away(tmp_path / "base", way) == ([given, {}] if way == "lend" else [None, given])
