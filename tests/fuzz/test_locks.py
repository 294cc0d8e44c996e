"""Locks with random words: read as they were meant, or refused in one line that names the lock."""

from __future__ import annotations

import tempfile
from pathlib import Path

import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st

from gymcp.errors import GymcpError
from gymcp.mcp_servers.packages.lockfile import read_lock
from gymcp.mcp_servers.packages.wheels import _requirement
from gymcp.types import Json

HASH = "sha256:" + "0" * 64
PYTHON: dict[str, Json] = {
    "name": "calc",
    "runtime": "python",
    "package": "mcp-calc",
    "version": "1.2.0",
    "command": ["uvx", "mcp-calc==1.2.0"],
    "python": ">=3.11",
    "sdk_major": 1,
    "forks": True,
    "tools_sha256": "0" * 64,
    "env": {"A": "b"},
    "http": "80/mcp",
    "headers": {},
    "trees": {"linux": "0" * 64},
    "packages": {"mcp-calc==1.2.0": {"files": [f"mcp_calc-1.2.0-py3-none-any.whl {HASH}"], "marker": "os_name == 'a'"}},
    "tools": {},
}
texts = st.text(max_size=12) | st.sampled_from(
    ("\n--index-url http://x/", "-r /etc/hostname", "idna @ http://x/y.whl", "a b", "../..", "\0", "\x1b[2J", "=" * 9)
)
values: st.SearchStrategy[Json] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def read(content: dict[str, Json]) -> None:
    with tempfile.TemporaryDirectory(prefix="gymcp-fuzz-") as folder:
        file = Path(folder) / "servers.lock"
        file.write_text(tomli_w.dumps(content), encoding="utf-8")
        try:
            servers = read_lock(file, consistent=False)
        except GymcpError as error:
            assert "\n" not in str(error)  # noqa: PT017
            assert str(error).startswith(f"lock '{file}'") or "server name" in str(error)  # noqa: PT017
            return
    for server in servers.values():
        for package in server.packages if server.runtime == "python" else ():
            line = _requirement(package)
            assert line.count("\n") == 1
            assert "://" not in line
            assert not line.startswith("-")


@given(st.sampled_from(sorted(PYTHON)), values)
@example("tools", {"": {"\n--index-url http://x/": False}})
@example("packages", {"idna\n--index-url http://x/==1": {"files": [f"idna-1-py3-none-any.whl {HASH}"]}})
@example("version", "1\n")
def test_words_of_a_server(key: str, value: Json) -> None:
    read({"format": 1, "server": [{**PYTHON, key: value}]})


@given(texts, texts, texts, texts)
def test_words_of_a_package(name: str, version: str, marker: str, line: str) -> None:
    package = {"files": [f"mcp_calc-1.2.0-py3-none-any.whl {line}"], "marker": marker}
    read({"format": 1, "server": [{**PYTHON, "packages": {f"{name}=={version}": package}}]})


@given(st.sampled_from(("python", "node", "image", "remote")), st.dictionaries(texts, values, max_size=3))
def test_packages_of_any_shape(runtime: str, packages: dict[str, Json]) -> None:
    read({"format": 1, "server": [{**PYTHON, "runtime": runtime, "packages": packages}]})


@given(st.dictionaries(st.sampled_from(("format", "server", "other")), values))
def test_locks_of_any_shape(content: dict[str, Json]) -> None:
    read({"format": 1, **content})


@given(st.binary(max_size=200))
@example(b"format = 1\nx = " + b"[" * 10_000)
def test_locks_of_any_bytes(content: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="gymcp-fuzz-") as folder:
        file = Path(folder) / "servers.lock"
        file.write_bytes(content)
        try:
            read_lock(file)
        except GymcpError as error:
            assert str(error).startswith(f"lock '{file}'")  # noqa: PT017
