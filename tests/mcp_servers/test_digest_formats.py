"""Digests of sqlite databases and git repositories."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
from digesting import digest_of, run_with_digester, set_workspace_mode, way

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.spec import DigestLimits, FileState
from gymcp.mcp_servers.workspaces.digester import Digester
from gymcp.mcp_servers.workspaces.seeds import FIXED_ENVIRONMENT

__all__ = ["set_workspace_mode", "way"]  # the fixtures, used by every test

pytestmark = pytest.mark.usefixtures("bwrap")


# -------------------------------------------------------------------------------------------------------------- sqlite


def database(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


def test_a_database_is_its_schema_and_its_typed_rows(tmp_path: Path) -> None:
    script = "CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (1.0, NULL), (x'ff', '1'), (9e999, 2);"
    database(tmp_path / "db", script)
    _, state = digest_of(tmp_path, kind="sqlite", path="db")
    assert state == {
        "schema": [["table", "t", "t", "CREATE TABLE t (a, b)"]],
        "tables": {"t": [[1, "x"], [1.0, None], [{"base64": "/w=="}, "1"], [{"real": "inf"}, 2]]},
    }


def test_databases_with_equal_rows_are_equal(tmp_path: Path) -> None:
    database(tmp_path / "one", "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2);")
    database(
        tmp_path / "two",
        "PRAGMA journal_mode=WAL; CREATE TABLE t (a); INSERT INTO t VALUES (3), (2), (1); DELETE FROM t WHERE a=3;"
        "VACUUM;",
    )
    database(tmp_path / "other", "CREATE TABLE t (a); INSERT INTO t VALUES (1), ('2');")
    keys = [digest_of(tmp_path, kind="sqlite", path=name)[0] for name in ("one", "two", "other")]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_rows_of_an_open_database_are_seen_once_committed(tmp_path: Path, journal: str) -> None:
    connection = sqlite3.connect(tmp_path / "db", isolation_level=None)
    connection.execute(f"PRAGMA journal_mode={journal}")
    connection.execute("CREATE TABLE t (a)")

    async def work(digester: Digester) -> None:
        seen = [await digester.key()]
        connection.execute("INSERT INTO t VALUES (1)")
        seen.append(await digester.key())
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (2)")
        seen.append(await digester.key())
        connection.execute("COMMIT")
        seen.append(await digester.key())
        connection.execute("DELETE FROM t WHERE a = 2")
        seen.append(await digester.key())
        assert seen[0] != seen[1] == seen[2] != seen[3]
        assert seen[4] == seen[1]

    run_with_digester(tmp_path, work, FileState(kind="sqlite", path="db"))
    connection.close()


def test_a_damaged_database_is_a_state_like_any_other(tmp_path: Path) -> None:
    database(tmp_path / "db", "CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(20000));")
    whole = (tmp_path / "db").read_bytes()
    keys = {digest_of(tmp_path, kind="sqlite", path="db")[0]}
    for content in (b"no database", whole[:5000], whole[:100] + b"\xff" * 200 + whole[300:]):
        (tmp_path / "db").write_bytes(content)
        key, state = digest_of(tmp_path, kind="sqlite", path="db")
        assert "unreadable" in state
        keys.add(key)
    assert len(keys) == 4


def test_a_database_cannot_run_for_ever(tmp_path: Path) -> None:
    database(tmp_path / "db", "CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT max(i) FROM n"
    database(tmp_path / "db", f"CREATE VIEW v AS {endless};")  # a view is schema: it is not run
    assert list(digest_of(tmp_path, kind="sqlite", path="db")[1]["tables"]) == ["t"]
    swap = (
        "PRAGMA writable_schema=ON; UPDATE sqlite_master SET type='table' WHERE name='v'; PRAGMA writable_schema=OFF;"
    )
    database(tmp_path / "db", swap)  # a view that claims to be a table
    with contextlib.suppress(EnvInfraError):  # refused or unreadable, by the version of sqlite; never endless
        digest_of(tmp_path, kind="sqlite", path="db", limits=DigestLimits(seconds=1.0))


def test_a_link_or_a_fifo_is_an_empty_database(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    empty: dict[str, object] = {"schema": [], "tables": {}}
    for name in ("link", "fifo", "absent"):
        assert digest_of(tmp_path, kind="sqlite", path=name)[1] == empty


# ----------------------------------------------------------------------------------------------------------------- git


def git(folder: Path, *arguments: str, **env: str) -> None:
    environment = {"PATH": os.environ["PATH"], **FIXED_ENVIRONMENT, "HOME": "/nonexistent", **env}
    command = ["git", "-c", "safe.directory=*", *arguments]  # once digested, the folder belongs to servers
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)


def repository(folder: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a").write_text("1")
    git(folder, "add", "a")
    git(folder, "commit", "-q", "-m", "first")
    return folder


@pytest.mark.usefixtures("git_program")
def test_a_repository_is_head_refs_index_and_work_tree(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo")
    git(folder, "tag", "v1")
    (folder / "b").write_text("new")
    _, state = digest_of(tmp_path, kind="git", path="repo")
    commit = state["refs"]["refs/heads/main"]
    assert len(commit) == 40
    assert state == {
        "head": "ref: refs/heads/main",
        "refs": {"refs/heads/main": commit, "refs/tags/v1": commit},
        "index": [["a", "100644", "56a6051ca2b02b04ef92d5150c9ef600403cb1de", 0]],
        "files": {
            "a": {"type": "file", "mode": "644", "text": "1"},
            "b": {"type": "file", "mode": "644", "text": "new"},
        },
    }


@pytest.mark.usefixtures("git_program")
def test_packing_and_refreshing_do_not_change_a_repository(tmp_path: Path) -> None:
    one, two = repository(tmp_path / "one"), repository(tmp_path / "two")
    git(two, "gc", "-q")
    git(two, "pack-refs", "--all")
    git(two, "update-index", "--index-version", "4")
    os.utime(two / "a", ns=(5, 5))
    git(two, "status")
    before = digest_of(tmp_path, kind="git", path="one")[0]
    assert digest_of(tmp_path, kind="git", path="two")[0] == before
    seen = {before}
    for arguments in (("branch", "other"), ("checkout", "-q", "other"), ("rm", "-q", "--cached", "a")):
        git(one, *arguments)
        seen.add(digest_of(tmp_path, kind="git", path="one")[0])
    assert len(seen) == 4


def test_a_link_to_another_repository_is_a_file(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: ../other")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".git").symlink_to("/etc")
    assert digest_of(tmp_path, kind="git")[1]["files"][".git"]["text"] == "gitdir: ../other"
    assert digest_of(tmp_path, kind="git", path="linked")[1]["files"][".git"]["target"] == "/etc"


@pytest.mark.usefixtures("git_program")
def test_settings_of_a_repository_run_no_program(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo")
    before = digest_of(tmp_path, kind="git", path="repo")[0]
    git(folder, "config", "core.fsmonitor", "touch /world/repo/ran")
    git(folder, "config", "core.pager", "touch /world/repo/ran")
    after, state = digest_of(tmp_path, kind="git", path="repo")
    assert after != before
    assert list(state["files"]) == ["a"]


@pytest.mark.parametrize("content", [b"", b"DIRC", b"DIRC" + b"\xff" * 200, b"DIRC\0\0\0\4\0\0\0\1" + b"\xff" * 80])
def test_a_crafted_index_is_unreadable_and_nothing_worse(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(content)
    (tmp_path / ".git" / "HEAD").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / ".git" / "packed-refs")
    _, state = digest_of(tmp_path, kind="git")
    assert state["index"].keys() == {"unreadable"}
    assert (state["head"], state["refs"]) == (None, {})
