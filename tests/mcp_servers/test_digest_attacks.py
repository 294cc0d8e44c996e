"""Digests of hostile trees: links, devices, sizes, depths, names, and files that never stop changing."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path

import pytest
from digesting import digest_of, refusal, run_with_digester, set_workspace_mode, way

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.spec import DigestLimits
from gymcp.mcp_servers.workspaces.digester import Digester

__all__ = ["set_workspace_mode", "way"]  # the fixtures, used by every test

pytestmark = pytest.mark.usefixtures("bwrap")


def test_a_link_is_recorded_and_never_followed(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("xyz")
    (tmp_path / "world" / "folder").symlink_to("../secret")
    (tmp_path / "world" / "file").symlink_to("/etc/passwd")
    (tmp_path / "world" / "loop").symlink_to("loop")
    _, state = digest_of(tmp_path / "world")
    assert {path: entry["target"] for path, entry in state["files"].items()} == {
        "folder": "../secret",
        "file": "/etc/passwd",
        "loop": "loop",
    }
    for path in ("folder", "folder/key", "../secret", "/etc"):
        assert "its state has no digest" in refusal(tmp_path / "world", path=path)


def test_a_device_is_named_and_never_opened(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero, which never ends
    except PermissionError:
        pytest.skip("only root can make a device")
    assert digest_of(tmp_path)[1] == {"files": {"device": {"type": "device", "mode": "644", "device": "1:5"}}}


def test_a_sparse_file_of_a_terabyte_is_too_large(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10**12)
    assert "too large: more than 512000000 bytes" in refusal(tmp_path)


@pytest.mark.parametrize("way", ["forked"], indirect=True)
def test_a_hundred_thousand_entries_are_digested(tmp_path: Path, way: str) -> None:
    for number in range(100_000):
        os.symlink("x", tmp_path / str(number))  # noqa: PTH211 - a Path each would take most of the time
    _, state = digest_of(tmp_path, limits=DigestLimits(seconds=300))
    assert len(state["files"]) == 100_000


def test_one_more_entry_than_the_limit_is_too_large(tmp_path: Path) -> None:
    assert DigestLimits().entries == 100_000
    for number in range(1000):
        (tmp_path / str(number)).symlink_to("x")
    assert len(digest_of(tmp_path, limits=DigestLimits(entries=1000))[1]["files"]) == 1000
    (tmp_path / "one more").symlink_to("x")
    assert "too large: more than 1000 entries" in refusal(tmp_path, limits=DigestLimits(entries=1000))


def test_folders_nested_too_deep_are_too_large(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(70):
        deep /= "d"
        deep.mkdir()
    assert "too large: folders are nested more than 64 deep" in refusal(tmp_path)


def test_a_workspace_that_takes_too_long_is_too_large(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(500_000_000)
    assert "takes more than 0.01 s" in refusal(tmp_path, limits=DigestLimits(seconds=0.01))


def test_names_may_be_anything(tmp_path: Path) -> None:
    names = [
        b"new\nline",
        b"\xff\xfe",
        "\u202egnp.exe".encode(),
        b'{"op": "state"}',
        b" ",
        b"\\",
        "é".encode(),
        "é".encode(),
    ]
    for number, name in enumerate(names):
        (tmp_path / os.fsdecode(name)).write_text(str(number))
    key, state = digest_of(tmp_path)
    assert {os.fsencode(path): entry["text"] for path, entry in state["files"].items()} == {
        name: str(number) for number, name in enumerate(names)
    }
    (tmp_path / os.fsdecode(b"\xff\xfe")).rename(tmp_path / os.fsdecode(b"\xff\xfd"))
    assert digest_of(tmp_path)[0] != key


def test_files_without_read_permission_are_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("hidden")
    (tmp_path / "folder" / "file").chmod(0)
    (tmp_path / "folder").chmod(0)
    try:
        _, state = digest_of(tmp_path)
        assert state["files"]["folder/file"] == {"type": "file", "mode": "0", "text": "hidden"}
    finally:
        (tmp_path / "folder").chmod(0o700)


def test_a_file_that_never_stops_changing_is_reported_or_digested_whole(tmp_path: Path) -> None:
    """Each outcome of the race is an answer in bounded time, and the helper survives."""
    file, stop = tmp_path / "file", threading.Event()
    contents = [bytes([digit]) * 3_000_000 for digit in b"ab"]
    file.write_bytes(contents[0])

    def churn() -> None:
        while not stop.is_set():
            for content in contents:
                other = tmp_path / "other"
                other.write_bytes(content)
                other.replace(file)
                file.unlink()
                file.symlink_to("/etc/passwd")
                file.unlink()
                os.mkfifo(file)
                file.unlink()

    churning = threading.Thread(target=churn)
    refusals: list[str] = []

    async def work(digester: Digester) -> None:
        churning.start()
        for _ in range(20):
            try:
                await digester.key()
            except EnvInfraError as error:
                refusals.append(str(error))
        stop.set()
        await asyncio.to_thread(churning.join)
        assert await digester.key() == await digester.key()

    try:
        run_with_digester(tmp_path, work)
    finally:
        stop.set()
    assert all("does not stand still" in said for said in refusals)
