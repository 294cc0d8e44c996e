"""`gymcp clean`, and the clean-up before a run: orphans are removed, everything in use stays."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp

from gymcp.mcp_servers.packages.install import folder_of
from gymcp.mcp_servers.packages.lockfile import LockedServer, read_locked_server, write_lock
from gymcp.process_owner import lock_folder

LOCK = Path(__file__).parents[2] / "envs" / "catalog" / "servers.lock"
DEAD = "1-1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x" * 2_000_000)
    return folder


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock the folder, as a process that uses it does."""
    handle = lock_folder(folder)
    try:
        yield
    finally:
        os.close(handle)


def test_a_run_removes_leftovers_of_a_killed_run_and_prints_one_line(home: Path, tmp_path: Path) -> None:
    left = make(home / "servers" / f".clock-{DEAD}-abcdefgh")
    done = gymcp("eval", BANK, "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("gymcp: removed what dead runs had left (")]
    assert len(lines) == 1
    assert "unfinished: 1" in lines[0]
    assert not left.exists()
    again = gymcp("clean", "--dry-run")
    assert str(home) not in again.stdout


def test_servers_that_no_lock_names_are_removed_only_when_asked(home: Path, tmp_path: Path) -> None:
    kept = make(folder_of(read_locked_server(LOCK, "time")))
    old = make(home / "servers" / "old-0123456789abcdef")
    in_use = make(home / "servers" / "used-0123456789abcdef")
    gymcp("clean")
    assert all(folder.is_dir() for folder in (kept, old, in_use))

    with hold(in_use):
        told = gymcp("clean", "--servers", "--dry-run", cwd=tmp_path).stdout
        assert f"server {old} (2 MB)\n" in told
        assert f"server {in_use} (2 MB): is in use, and left alone\n" in told
        assert "servers that none of 1 locks names: 2; 2 MB could be removed" in told
        assert str(kept) not in told
        assert old.is_dir()
        assert "2 MB removed" in gymcp("clean", "--servers", cwd=tmp_path).stdout
        assert [folder.is_dir() for folder in (kept, old, in_use)] == [True, False, True]


def test_a_lock_that_was_ever_read_keeps_its_servers(home: Path, tmp_path: Path) -> None:
    lock = tmp_path / "elsewhere" / "servers.lock"
    lock.parent.mkdir()
    time = read_locked_server(LOCK, "time")
    write_lock(lock, {"clock": replace(time, name="clock", packages=time.packages[:3])})
    kept = make(folder_of(read_locked_server(lock, "clock")))
    assert gymcp("servers", "list", "--lock", lock).returncode == 0
    assert str(kept) not in gymcp("clean", "--servers").stdout
    assert kept.is_dir()
    lock.unlink()
    assert str(kept) in gymcp("clean", "--servers").stdout
    assert not kept.exists()


def test_python_servers_with_the_same_packages_share_a_folder_which_stays_as_long_as_a_lock_names_one(
    home: Path, tmp_path: Path
) -> None:
    few = read_locked_server(LOCK, "time").packages[:3]
    clock, watch = (replace(read_locked_server(LOCK, "time"), name=name, packages=few) for name in ("clock", "watch"))
    assert folder_of(clock).name.removeprefix("clock") == folder_of(watch).name.removeprefix("watch")
    shared = make(folder_of(watch))
    assert folder_of(clock) == folder_of(watch) == shared
    write_lock(tmp_path / "servers.lock", {"clock": clock})
    assert str(shared) not in gymcp("clean", "--servers", cwd=tmp_path).stdout
    assert shared.is_dir()
    (tmp_path / "servers.lock").unlink()
    assert f"server {shared} (2 MB)\n" in gymcp("clean", "--servers", cwd=tmp_path).stdout
    assert folder_of(clock).name.startswith("clock")


def test_node_servers_share_no_folder(home: Path) -> None:
    """npm installs what the folder's package.json names, which is the server's own package."""
    memory = read_locked_server(LOCK, "memory")
    make(folder_of(memory))
    assert not folder_of(replace(memory, name="other")).exists()


def test_a_fetched_python_stays_as_long_as_a_lock_names_its_version(home: Path, tmp_path: Path) -> None:
    old, named = (make(home / "pythons" / f"cpython-3.{minor}.1-linux-x86_64-gnu") for minor in (12, 13))
    link = home / "pythons" / "cpython-3.12-linux-x86_64-gnu"
    link.symlink_to(old.name)
    clock = read_locked_server(LOCK, "time")
    write_lock(tmp_path / "servers.lock", {"time": replace(clock, python_version="3.13")})
    told = gymcp("clean", "--servers", "--dry-run", cwd=tmp_path).stdout
    assert f"Python {old} (2 MB)\nPythons that none of 2 locks names: 1; 2 MB could be removed\n" in told
    with hold(old):
        assert f"Python {old} (2 MB): is in use, and left alone\n" in gymcp("clean", "--servers", cwd=tmp_path).stdout
    gymcp("clean", cwd=tmp_path)
    assert old.is_dir()
    done = gymcp("clean", "--servers", cwd=tmp_path)
    assert "Pythons that none of 2 locks names: 1; 2 MB removed\n" in done.stdout
    assert [path.name for path in link.parent.iterdir()] == [named.name]


def test_images_and_remote_servers_have_no_folder_to_keep(home: Path, tmp_path: Path) -> None:
    image = LockedServer(name="boxed", runtime="image", package="box", version="1", command=("docker", "run", "box:1"))
    remote = LockedServer(name="far", runtime="remote", package="far", version="1", command=("https://far.test/mcp",))
    lock, clock = tmp_path / "servers.lock", read_locked_server(LOCK, "time")
    write_lock(lock, {server.name: server for server in (image, remote, clock)})
    kept, old = make(folder_of(clock)), make(home / "servers" / "boxed-0123456789abcdef")
    done = gymcp("clean", "--servers", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "servers that none of 2 locks names: 1; 2 MB removed" in done.stdout
    assert [folder.is_dir() for folder in (kept, old)] == [True, False]
