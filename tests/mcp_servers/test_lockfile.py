"""`servers.lock` is read as it was written, and edits by hand are noticed."""

from __future__ import annotations

import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gymcp.errors import ConfigError, GymcpError, IntegrityError
from gymcp.mcp_servers.packages.lockfile import (
    LockedPackage,
    LockedServer,
    edit_lock,
    read_lock,
    read_locked_server,
    write_lock,
)
from gymcp.mcp_servers.services import Service
from gymcp.mcp_servers.tools.hashes import hash_tools
from gymcp.types import Tool

ADD = Tool(name="add", description="Adds.", input_schema={"type": "object", "properties": {"a": {"type": "integer"}}})
SERVER = LockedServer(
    name="calc",
    runtime="python",
    package="mcp-calc",
    version="1.2.0",
    command=("uvx", "mcp-calc==1.2.0", "--key", "${CALC_KEY}"),
    env={"CALC_TOKEN": "${CALC_TOKEN}"},
    sdk_major=1,
    python=">=3.11",
    python_version="3.12",
    services=(Service.parse("redis-server --port 6379", "tcp:6379", 20),),
    packages=(
        LockedPackage(
            name="mcp-calc", version="1.2.0", files={"mcp_calc-1.2.0-py3-none-any.whl": "sha256:" + "0" * 64}
        ),
        LockedPackage(
            name="x",
            version="2",
            files={"x-2-py3-none-any.whl": "sha256:" + "1" * 64},
            marker="python_version < '3.12'",
        ),
    ),
    trees={"linux-x86_64-cp311": "2" * 64},
    tools=hash_tools([ADD]),
)
NODE = replace(
    SERVER,
    name="notes",
    runtime="node",
    python="",
    python_version="",
    services=(),
    packages=(LockedPackage(name="node_modules/a", version="1.0.0", files={"integrity": "sha512-aa=="}, needs=("b",)),),
)


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "servers.lock"
    write_lock(path, {"calc": SERVER, "notes": NODE})
    assert read_lock(path) == {"calc": SERVER, "notes": NODE}
    assert read_locked_server(path, "notes") == NODE


def test_equal_servers_are_written_as_equal_bytes(tmp_path: Path) -> None:
    write_lock(tmp_path / "one", {"calc": SERVER, "notes": NODE})
    write_lock(tmp_path / "two", {"notes": NODE, "calc": SERVER})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (("format = 1", "format = 2"), ConfigError, "format 2; this gymcp reads format 1"),
        (("format = 1", "format = "), ConfigError, "not TOML"),
        (('runtime = "python"', 'runtime = "ruby"'), ConfigError, "server 1: ValueError: runtime 'ruby'"),
        (('version = "1.2.0"\n', ""), ConfigError, "server 1: has no 'version'"),
        (
            ('python_version = "3.12"', 'python_version = "3.12 -x"'),
            ConfigError,
            "python_version: '3.12 -x' is not a",
        ),
        (('ready = "tcp:6379"', 'ready = "tcp:x"'), ConfigError, "service 'redis-server': no ready check 'tcp:x'"),
        (('name = "notes"', 'name = "calc"'), ConfigError, "two servers are named 'calc'"),
        (('name = "notes"', 'name = "../notes"'), ConfigError, "server name '../notes'"),
        ((SERVER.tools["add"].params["a"], "0" * 16), IntegrityError, "tools_sha256 does not belong to its tools"),
    ],
)
def test_a_lock_that_was_edited_badly_is_one_error(
    change: tuple[str, str], error: type[GymcpError], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "servers.lock"
    write_lock(path, {"calc": SERVER, "notes": NODE})
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(change[0], change[1], 1))
    with pytest.raises(error) as caught:
        read_lock(path)
    assert said in str(caught.value)


def test_an_error_for_a_missing_lock_or_server_names_what_exists(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not found; make it with: gymcp servers add"):
        read_lock(tmp_path / "servers.lock")
    write_lock(tmp_path / "servers.lock", {"calc": SERVER})
    with pytest.raises(ConfigError, match="no server 'nope'; have calc"):
        read_locked_server(tmp_path / "servers.lock", "nope")


def test_concurrent_edits_of_a_lock_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "servers.lock"

    def add(number: int) -> None:
        with edit_lock(path) as servers:
            servers[f"calc{number}"] = replace(SERVER, name=f"calc{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(16)))
    assert len(read_lock(path)) == 16


def test_the_catalog_s_lock_names_no_address() -> None:
    path = Path(__file__).parents[2] / "envs" / "catalog" / "servers.lock"
    assert "://" not in path.read_text()
    assert tomllib.loads(path.read_text())["format"] == 1
    assert {"time", "git", "memory", "filesystem", "sequential_thinking"} <= set(read_lock(path))
