"""Random worlds of files, databases and repositories: equal worlds have equal digests, different worlds different ones.

What a world is, is said here a second time, by other means than the digester's: the file system's own calls, SQL, git.
What both leave out on purpose is in `LEFT_OUT`; a test shows each of them. One helper is kept through all changes of a
world, with what it remembers, and must agree with one that sees the world for the first time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from gymcp.mcp_servers.programs.digest.server import DigestService, make_reader
from gymcp.mcp_servers.programs.digest.tree import Tree
from gymcp.mcp_servers.workspaces.copying import copy_tree
from gymcp.mcp_servers.workspaces.seeds import FIXED_ENVIRONMENT

LEFT_OUT = {
    "workspace": "times, owners, holes, which of several files with equally many names are one, users of access lists",
    "sqlite": "rowids that no column shows, order of rows, layout of the file: pages, journal, encoding, free pages",
    "git": "objects, reflogs, packing, samples of hooks, what git notes beside the state (ORIG_HEAD, FETCH_HEAD)",
}
LIMITS = {"bytes": 10_000_000, "entries": 10_000, "depth": 64, "seconds": 60.0}
Op = tuple[Any, ...]


def teller(folder: Path, kind: str, path: str = ".") -> DigestService:
    tree = Tree(LIMITS, [], time.time_ns())
    return DigestService(tree, make_reader(kind, tree), os.open(folder, os.O_RDONLY | os.O_DIRECTORY), path)


def key(told: DigestService, *, again: bool = False) -> str:
    answer = told.answer({"op": "key", "again": again})
    assert "key" in answer, answer
    return str(answer["key"])


def fresh_key(folder: Path, kind: str, path: str = ".") -> str:
    told = teller(folder, kind, path)
    try:
        return key(told)
    finally:
        os.close(told._root)


@contextlib.contextmanager
def folders(count: int) -> Iterator[list[Path]]:
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        (Path(root) / "tmp").mkdir()
        patch.setenv("TMPDIR", f"{root}/tmp")
        made = [Path(root) / str(number) for number in range(count)]
        for folder in made:
            folder.mkdir(mode=0o755)
        yield made


fuzzed = settings(deadline=None, suppress_health_check=list(HealthCheck))

# -------------------------------------------------------------------------------------------------------------- files

NAMES = ("a", "b", "é", "d/a", "d/b", "d/e/a", os.fsdecode(b"\xff"), "new\nline")
Name = st.sampled_from(NAMES)
Content = st.sampled_from([b"", b"1", b"2", b"\xff", b"x" * 70_000])
FileOp = st.one_of(
    st.tuples(st.just("write"), Name, Content),
    st.tuples(st.just("append"), Name, Content),
    st.tuples(st.just("remove"), Name),
    st.tuples(st.just("rename"), Name, Name),
    st.tuples(st.just("chmod"), st.sampled_from((*NAMES, "d", ".")), st.sampled_from([0o644, 0o600, 0o755, 0o700])),
    st.tuples(st.just("link"), Name, Name),
    st.tuples(st.just("symlink"), Name, st.sampled_from(["a", "..", "/etc/passwd"])),
    st.tuples(st.just("fifo"), Name),
    st.tuples(st.just("folder"), Name),
    st.tuples(st.just("touch"), Name),
    st.tuples(st.just("hole"), Name),
    st.tuples(st.just("attribute"), st.sampled_from((*NAMES, "d", ".")), st.sampled_from([b"", b"1", None])),
)


def do_to_files(folder: Path, op: Op) -> None:
    """One change; what cannot be done is left."""
    kind, name, *rest = op
    path = folder / name
    with contextlib.suppress(OSError):
        if kind not in ("chmod", "attribute"):
            path.parent.mkdir(parents=True, exist_ok=True)
        if kind in ("write", "append"):
            if not path.is_symlink() and (path.is_file() or not path.exists()):
                with path.open("wb" if kind == "write" else "ab") as file:
                    file.write(rest[0])
        elif kind == "remove":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif kind == "rename":
            (folder / rest[0]).parent.mkdir(parents=True, exist_ok=True)
            path.rename(folder / rest[0])
        elif kind == "chmod":
            path.chmod(rest[0]) if not path.is_symlink() else None
        elif kind == "link":
            os.link(path, folder / rest[0], follow_symlinks=False)
        elif kind == "symlink":
            path.symlink_to(rest[0])
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "touch":
            os.utime(path, ns=(0, 0), follow_symlinks=False)
        elif kind == "hole" and not path.is_symlink() and path.is_file() and not path.read_bytes():
            os.truncate(path, 70_000)
        elif kind == "attribute" and rest[0] is None:
            os.removexattr(path, "user.note", follow_symlinks=False)
        elif kind == "attribute":
            os.setxattr(path, "user.note", rest[0], follow_symlinks=False)


def tree_of(folder: Path) -> Any:
    """All that can be seen of it: kinds, modes, contents, links, attributes."""
    found: dict[str, Any] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        seen: list[Any] = [stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode)]
        if path.is_symlink():
            seen.append(path.readlink())
        elif path.is_file() or path.is_dir():
            seen.append({name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")})
            seen.append((path.read_bytes(), status.st_nlink) if path.is_file() else None)
        found[str(path.relative_to(folder))] = seen
    return found


@fuzzed
@given(st.lists(FileOp, max_size=12), st.lists(FileOp, max_size=12), st.lists(FileOp, min_size=1, max_size=3))
@example([("write", "a", b"1"), ("link", "a", "b")], [("write", "a", b"1"), ("write", "b", b"1")], [("touch", "a")])
@example([("write", "a", b"1"), ("attribute", "a", b"1")], [("write", "a", b"1")], [("attribute", "a", None)])
@example([("chmod", ".", 0o700)], [], [("attribute", ".", b"1")])
@example([("write", "a", b""), ("hole", "a")], [("write", "a", b"\0" * 70_000)], [("rename", "a", "b")])
def test_trees_have_one_digest_exactly_if_they_look_alike(
    left: Sequence[Op], right: Sequence[Op], more: Sequence[Op]
) -> None:
    with folders(3) as (one, two, copy):
        for op in left:
            do_to_files(one, op)
        for op in right:
            do_to_files(two, op)
        kept = teller(one, "workspace")
        before, seen = key(kept), tree_of(one)
        assert (before == fresh_key(two, "workspace")) == (seen == tree_of(two))
        copy.rmdir()
        copy_tree(one, copy)
        assert (fresh_key(copy, "workspace"), tree_of(copy)) == (before, seen)
        for op in more:
            do_to_files(one, op)
            now = key(kept)
            assert now == key(kept, again=True) == fresh_key(one, "workspace")
            assert (now == before) == (tree_of(one) == seen)
            do_to_files(copy, op)
            assert fresh_key(copy, "workspace") == now  # a copy goes the way of its original
        os.close(kept._root)


def test_trees_are_digested_without_the_documented_parts() -> None:
    with folders(2) as (one, two):
        for folder, pairs in ((one, ("ab", "cd")), (two, ("ac", "bd"))):
            for pair in pairs:
                (folder / pair[0]).write_bytes(b"\0" * 4096)
                os.link(folder / pair[0], folder / pair[1])
        os.truncate(two / "a", 0)
        os.truncate(two / "a", 4096)  # a hole
        os.utime(two / "a", ns=(0, 0))
        assert fresh_key(one, "workspace") == fresh_key(two, "workspace")
        with socket.socket(socket.AF_UNIX) as listener:  # named, not asked
            listener.bind(str(one / "socket"))
            assert fresh_key(one, "workspace") != fresh_key(two, "workspace")


# ----------------------------------------------------------------------------------------------------------- databases

VALUES = st.sampled_from(
    ["NULL", "0", "1", "1.0", "'1'", "x'31'", "9e999", "'é'", "cast(x'ff' as text)", "char(97, 0)"]
)
Table = st.sampled_from(["t", "u"])
SqlOp = st.one_of(
    st.builds("INSERT INTO {} VALUES ({}, {})".format, Table, VALUES, VALUES),
    st.builds("DELETE FROM {} WHERE a IS {}".format, Table, VALUES),
    st.builds("UPDATE {} SET b = {} WHERE a IS {}".format, Table, VALUES, VALUES),
    st.builds("CREATE TABLE {} (a, b)".format, Table),
    st.builds("DROP TABLE {}".format, Table),
    st.builds("ALTER TABLE {} RENAME COLUMN b TO c".format, Table),
    st.builds("CREATE INDEX i_{} ON {} (a)".format, Table, Table),
    st.builds("CREATE VIEW v_{0} AS SELECT * FROM {0}".format, Table),
    st.builds("PRAGMA user_version = {}".format, st.integers(0, 2)),
    st.builds("PRAGMA application_id = {}".format, st.integers(0, 2)),
    st.builds("PRAGMA journal_mode = {}".format, st.sampled_from(["DELETE", "WAL"])),
    st.sampled_from(["VACUUM", "ANALYZE", "DELETE FROM sqlite_stat1", "PRAGMA optimize"]),
    st.just(
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET name = 'sqlite_stat9', tbl_name = 'sqlite_stat9', "
        "sql = replace(sql, 'TABLE u', 'TABLE sqlite_stat9') WHERE name = 'u'; PRAGMA writable_schema = OFF"
    ),
)


def run_sql(path: Path, script: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        with contextlib.suppress(sqlite3.Error):  # also of a schema that makes no sense
            connection.execute("PRAGMA synchronous = OFF")
            connection.executescript(script)
    finally:
        connection.close()


class Text(bytes):
    """Text as its bytes, which need not be UTF-8; its `repr` is not that of a blob."""

    def __repr__(self) -> str:
        return f"text {super().__repr__()}"


def rows_of(path: Path) -> Any:
    """Schema, typed rows in any order, and the two numbers that a program may set; None: not to be read as a whole."""
    connection = sqlite3.connect(path)
    connection.text_factory = Text
    try:
        schema = sorted(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"), key=repr)
        tables = [name.decode() for kind, name, *_ in schema if kind == b"table"]
        rows = {name: sorted(map(repr, connection.execute(f'SELECT * FROM "{name}"'))) for name in tables}
        numbers = [connection.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "application_id")]
    except sqlite3.Error:
        return None
    finally:
        connection.close()
    return schema, rows, numbers


@fuzzed
@given(st.lists(SqlOp, max_size=10), st.lists(SqlOp, max_size=10), st.lists(SqlOp, min_size=1, max_size=3))
@example(["INSERT INTO t VALUES (1, 2)", "INSERT INTO t VALUES (3, 4)"], ["INSERT INTO t VALUES (3, 4)"], ["ANALYZE"])
@example(["PRAGMA user_version = 1"], [], ["PRAGMA application_id = 1"])
@example(["INSERT INTO t VALUES (1, '1')"], [], ["UPDATE t SET b = x'31' WHERE a IS 1"])
def test_databases_have_one_digest_exactly_if_they_say_the_same(
    left: Sequence[str], right: Sequence[str], more: Sequence[str]
) -> None:
    with folders(1) as (folder,):
        one, two = folder / "one", folder / "two"
        for path, script in ((one, left), (two, right)):
            for statement in ("CREATE TABLE t (a, b); CREATE TABLE u (a, b)", *script):
                run_sql(path, statement)
        seen = rows_of(one)
        assume(seen is not None and rows_of(two) is not None)
        kept = teller(folder, "sqlite", "one")
        before = key(kept)
        assert (before == fresh_key(folder, "sqlite", "two")) == (seen == rows_of(two))
        for statement in more:
            run_sql(one, statement)
            now = key(kept)
            assert now == fresh_key(folder, "sqlite", "one")
            assert (now == before) == (rows_of(one) == seen)
        os.close(kept._root)


def test_databases_are_digested_without_the_documented_parts() -> None:
    with folders(1) as (folder,):
        run_sql(folder / "one", "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)")
        run_sql(
            folder / "two",
            "PRAGMA page_size = 8192; PRAGMA encoding = 'UTF-16'; PRAGMA journal_mode = WAL; CREATE TABLE t (a);"
            "INSERT INTO t (rowid, a) VALUES (7, 2), (9, 1)",
        )
        assert fresh_key(folder, "sqlite", "one") == fresh_key(folder, "sqlite", "two")


def test_a_false_virtual_table_hides_no_rows() -> None:
    """The schema says that there is nothing to read; the pages are there, and another edit of the schema shows them."""
    with folders(1) as (folder,):
        for name, row in (("one", 1), ("two", 2)):
            run_sql(
                folder / name,
                f"CREATE TABLE t (a); INSERT INTO t VALUES ({row}); PRAGMA writable_schema = ON; UPDATE sqlite_master "
                "SET sql = 'CREATE VIRTUAL TABLE t USING fts5(a)' WHERE name = 't'",
            )
        assert fresh_key(folder, "sqlite", "one") != fresh_key(folder, "sqlite", "two")


# -------------------------------------------------------------------------------------------------------- repositories

pytest_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
Branch = st.sampled_from(["main", "other", "deep/er"])
GitOp = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(["a", "b", "d/a"]), st.sampled_from(["1", "2"])),
    st.tuples(
        st.just("hook"), st.sampled_from(["pre-commit", "pre-commit.sample"]), st.sampled_from(["true", "false"])
    ),
    st.sampled_from(
        [
            ("add", "-A"),
            ("commit", "-q", "-m", "x"),
            ("commit", "-q", "--amend", "-m", "y"),
            ("rm", "-q", "--cached", "a"),
            ("reset", "-q", "--soft", "HEAD~1"),
            ("stash",),
            ("gc", "-q"),
            ("pack-refs", "--all"),
            ("status",),
            ("update-index", "--assume-unchanged", "a"),
            ("update-index", "--skip-worktree", "a"),
            ("update-index", "--index-version", "4"),
            ("add", "--intent-to-add", "b"),
        ]
    ),
    st.tuples(st.just("branch"), Branch),
    st.tuples(st.just("checkout"), st.just("-q"), Branch),
    st.tuples(st.just("tag"), st.just("-f"), st.sampled_from(["v1", "v2"])),
    st.tuples(st.just("merge"), st.just("-q"), st.just("-m"), st.just("m"), Branch),
    st.tuples(st.just("config"), st.sampled_from(["user.name", "core.pager"]), st.sampled_from(["x", "y"])),
)


def git(folder: Path, *arguments: str) -> str:
    environment = {"PATH": os.environ["PATH"], **FIXED_ENVIRONMENT, "HOME": "/nonexistent"}
    done = subprocess.run(["git", *arguments], cwd=folder, check=False, capture_output=True, env=environment)
    return done.stdout.decode("utf-8", "surrogateescape")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit."""
    folder = tmp_path_factory.mktemp("first")
    folder.chmod(0o755)
    git(folder, "init", "-q", "-b", "main")
    (folder / "a").write_text("1")
    git(folder, "add", "a")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def do_to_repository(folder: Path, op: Op) -> None:
    if op[0] == "write":
        (folder / op[1]).parent.mkdir(exist_ok=True)
        (folder / op[1]).write_text(op[2])
    elif op[0] == "hook":
        (folder / ".git" / "hooks" / op[1]).write_text(op[2])
    else:
        git(folder, *op)


def read_by_git(folder: Path) -> Any:
    """Commits, index with its flags, work tree, settings and hooks."""
    hooks = (folder / ".git" / "hooks").glob("*")
    pending = [name for name in ("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE") if (folder / ".git" / name).exists()]
    work = {str(path.relative_to(folder)): seen for path, seen in _work_tree(folder)}
    return (
        (folder / ".git" / "HEAD").read_text(),
        git(folder, "for-each-ref", "--format=%(refname) %(objectname)"),
        git(folder, "ls-files", "-s", "-v", "-t", "--cached"),
        (folder / ".git" / "config").read_text(),
        {path.name: path.read_text() for path in hooks if path.suffix != ".sample"},
        [(name, (folder / ".git" / name).read_text()) for name in pending],
        work,
    )


def _work_tree(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in folder.rglob("*"):
        if ".git" not in path.relative_to(folder).parts:
            yield path, path.read_text() if path.is_file() else ""


@pytest_git
@fuzzed
@given(st.lists(GitOp, max_size=2), st.lists(GitOp, min_size=1, max_size=1))
@example([("hook", "pre-commit", "false")], [("hook", "pre-commit.sample", "x")])
@example([("config", "core.pager", "x")], [("gc", "-q")])
@example([("update-index", "--assume-unchanged", "a")], [("status",)])
@example([("branch", "other")], [("pack-refs", "--all")])
def test_repositories_have_one_digest_exactly_if_git_tells_the_same(
    first: Path, ops: Sequence[Op], more: Sequence[Op]
) -> None:
    with folders(2) as (one, two):
        one.rmdir()
        copy_tree(first, one)
        for op in ops:
            do_to_repository(one, op)
        kept = teller(one, "git")
        before, seen = key(kept), read_by_git(one)
        two.rmdir()
        copy_tree(one, two)
        git(two, "status")  # refreshes the index: inodes and times
        assert fresh_key(two, "git") == before
        for op in more:
            do_to_repository(one, op)
            now = key(kept)
            assert now == fresh_key(one, "git")
            assert (now == before) == (read_by_git(one) == seen)
        os.close(kept._root)


@pytest_git
def test_repositories_are_digested_without_the_documented_parts(first: Path) -> None:
    with folders(1) as (folder,):
        folder.rmdir()
        copy_tree(first, folder)
        before = fresh_key(folder, "git")
        git(folder, "gc", "-q")
        shutil.rmtree(folder / ".git" / "logs")
        shutil.rmtree(folder / ".git" / "objects")
        for name in ("ORIG_HEAD", "FETCH_HEAD", "COMMIT_EDITMSG"):
            (folder / ".git" / name).write_text("x")
        (folder / ".git" / "hooks" / "x.sample").write_text("x")
        assert fresh_key(folder, "git") == before
