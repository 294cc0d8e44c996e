"""Errors of the store's file, and other processes that use it."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from records import episode

from gymcp.errors import StoreError
from gymcp.store import TrajectoryStore
from gymcp.store.database import FILE_NAME


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Make `folder` read-only; root gives up its rights in the context, because modes do not bind root."""
    folder.chmod(0o555)
    if root := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.fixture
def world_reachable_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def write(folder: Path, *tasks: str) -> None:
    with TrajectoryStore.open(folder, write=True) as store:
        for task in tasks:
            store.append(episode(task), {})


def refusal(folder: Path, *, write: bool = False, busy_timeout_s: float = 0.01) -> str:
    with pytest.raises(StoreError) as caught:
        TrajectoryStore.open(folder, write=write, busy_timeout_s=busy_timeout_s).close()
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"run folder {folder}: ")


def test_opening_again_finds_what_was_written(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b")
    with TrajectoryStore.open(tmp_path) as store:
        assert [row.task for row in store.summaries()] == ["a", "b"]


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    write(tmp_path, "a")
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("PRAGMA user_version = 9")
    expected = "written by a newer gymcp (format 9; this one reads up to 3): upgrade gymcp"
    assert refusal(tmp_path) == refusal(tmp_path, write=True) == expected


def test_a_missing_file_or_folder_is_reported(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "holds no trajectories.sqlite"
    assert refusal(tmp_path / "nowhere") == "no such folder"
    assert refusal(tmp_path / "nowhere", write=True) == "no such folder"


def test_garbage_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"hello, this is not a database" * 100)
    assert refusal(tmp_path) == refusal(tmp_path, write=True) == "trajectories.sqlite is not a database"


def test_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    expected = "trajectories.sqlite is not of gymcp"
    assert refusal(tmp_path) == refusal(tmp_path, write=True) == expected


def test_an_empty_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    assert refusal(tmp_path) == refusal(tmp_path, write=True) == "trajectories.sqlite is not of gymcp"


def test_processes_that_create_the_store_at_once_share_one(tmp_path: Path) -> None:
    for n in range(20):
        folder = tmp_path / str(n)
        folder.mkdir()
        together = threading.Barrier(4)

        def create(task: str, folder: Path = folder, together: threading.Barrier = together) -> None:
            together.wait()
            write(folder, task)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(create, "abcd"))
        with TrajectoryStore.open(folder) as store:
            assert sorted(row.task for row in store.summaries()) == ["a", "b", "c", "d"]


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, *(f"t{n}" for n in range(30)))
    file = tmp_path / FILE_NAME
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(StoreError, match=r"trajectories\.sqlite is damaged"), TrajectoryStore.open(tmp_path) as store:
        store.summaries()


def test_a_locked_database_is_reported_after_the_timeout(tmp_path: Path) -> None:
    write(tmp_path, "a")
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert refusal(tmp_path, write=True) == "locked by another process for longer than the timeout"
        with TrajectoryStore.open(tmp_path, busy_timeout_s=0.01) as reader:
            assert len(reader.summaries()) == 1


def test_a_reader_cannot_append(tmp_path: Path) -> None:
    write(tmp_path, "a")
    with TrajectoryStore.open(tmp_path) as store, pytest.raises(StoreError, match="cannot be written"):
        store.append(episode("b"), {})


def test_a_read_only_folder_can_be_read_but_not_written(world_reachable_folder: Path) -> None:
    write(world_reachable_folder, "a")
    with unwritable(world_reachable_folder):
        with TrajectoryStore.open(world_reachable_folder) as store:
            assert [row.task for row in store.summaries()] == ["a"]
        assert refusal(world_reachable_folder, write=True) == "cannot be written"


def test_a_database_is_not_created_in_an_unwritable_folder(world_reachable_folder: Path) -> None:
    with unwritable(world_reachable_folder):
        assert refusal(world_reachable_folder, write=True) == "trajectories.sqlite cannot be made: Permission denied"
