"""The digest helper in its real sandbox, on honest and on hostile trees."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import mmap
import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gymcp.errors import EnvInfraError, Undigestible
from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.programs.digest.tree import RACY_NS
from gymcp.mcp_servers.sandbox import SandboxProcess
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.users.ownership import give_to_servers
from gymcp.mcp_servers.spec import DigestLimits, FileState
from gymcp.mcp_servers.workspaces.digester import Digester, open_digester
from gymcp.mcp_servers.workspaces.overlay import overlay_namespace, why_no_overlay
from gymcp.mcp_servers.workspaces.seeds import FIXED_ENVIRONMENT
from gymcp.mcp_servers.workspaces.workspace import Workspace
from gymcp.scratch import remove_tree
from gymcp.types import Json

pytestmark = pytest.mark.usefixtures("bwrap")

WAY = ""
READ_ALL = 1 << 2
"""CAP_DAC_READ_SEARCH: in a namespace of its own, so over its user's files alone."""
Work = Callable[[Digester], Coroutine[None, None, None]]


@pytest.fixture(params=["forked", "started"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Start helpers by fork, or as new processes."""
    if request.param == "forked" and overlay_namespace() is None:
        pytest.skip(f"no helper is forked without overlays: {why_no_overlay()}")
    monkeypatch.setattr(sys.modules[__name__], "WAY", request.param)
    return str(request.param)


@pytest.fixture(autouse=True)
def set_workspace_mode(tmp_path: Path) -> None:
    """Give the folder the mode of a new workspace."""
    tmp_path.chmod(0o755)


@contextlib.asynccontextmanager
async def helpers(folder: Path, source: FileState, count: int = 1) -> AsyncIterator[list[Digester]]:
    """Open `count` helpers for the same workspace."""
    namespace = overlay_namespace()
    entry = namespace.entry if namespace is not None and WAY == "forked" else ()
    give_to_servers(folder)
    workspace = Workspace(folder=folder, upper_folder=folder, seed=folder, entry=entry)
    async with contextlib.AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(open_warm_sandbox(Bubblewrap()))
        opened = [open_digester("desk", source, workspace, sandbox) for _ in range(count)]
        found = [await stack.enter_async_context(each) for each in opened]
        assert {isinstance(each._process, ForkedProcess) for each in found} == {WAY == "forked"}
        yield found


def run_with_digester(folder: Path, work: Work, source: FileState | None = None) -> None:
    async def main() -> None:
        async with helpers(folder, source or FileState()) as (digester,):
            await work(digester)

    asyncio.run(main())


def digest_of(folder: Path, **source: Json) -> tuple[str, Json]:
    found: list[tuple[str, Json]] = []

    async def work(digester: Digester) -> None:
        found.append(await digester.state(await digester.key()))

    run_with_digester(folder, work, FileState(**source))
    return found[0]


def digest_here(folder: Path) -> tuple[str, Json]:
    """The digest by another helper without a previous state; works inside a running event loop."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return pool.submit(digest_of, folder, masks=("nothing",)).result()


def refusal(folder: Path, **source: Json) -> str:
    with pytest.raises(Undigestible) as caught:
        digest_of(folder, **source)
    return str(caught.value)


# -------------------------------------------------------------------------------------------------------------- files


def test_a_state_holds_bytes_types_modes_and_targets(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\r\n")
    (tmp_path / "bytes").write_bytes(b"\xff\x00")
    (tmp_path / "large").write_bytes(b"0" * 64_001)
    (tmp_path / "folder").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    (tmp_path / "text").chmod(0o755)
    _, state = digest_of(tmp_path)
    large = hashlib.sha256(b"0" * 64_001).hexdigest()
    assert state == {
        "files": {
            "text": {"type": "file", "mode": "755", "text": "hello\r\n"},
            "bytes": {"type": "file", "mode": "644", "base64": "/wA="},
            "large": {"type": "file", "mode": "644", "sha256": large, "size": 64_001},
            "folder": {"type": "folder", "mode": "750"},
            "link": {"type": "link", "mode": "777", "target": "/etc/passwd"},
            "fifo": {"type": "fifo", "mode": "644"},
            "socket": {"type": "socket", "mode": "755"},
        }
    }


Name = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)
Leaf = st.one_of(
    st.binary(max_size=40).map(lambda content: ("file", content)),
    st.sampled_from(["/etc/passwd", "..", "a", "b"]).map(lambda target: ("link", target)),
    st.just(("fifo", None)),
)
Node = st.recursive(
    Leaf, lambda node: st.dictionaries(Name, node, max_size=3).map(lambda n: ("folder", n)), max_leaves=8
)
TreeOf = st.dictionaries(Name, st.tuples(Node, st.sampled_from([0o644, 0o600, 0o000, 0o755])), max_size=4)


def build(folder: Path, tree: Json) -> None:
    for name, (node, mode) in tree.items():
        build_node(folder / name, node)
        if node[0] != "link":
            (folder / name).chmod(mode)


def build_node(path: Path, node: Json) -> None:
    kind, content = node
    if kind == "file":
        path.write_bytes(content)
    elif kind == "link":
        path.symlink_to(content)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
        for name, child in content.items():
            build_node(path / name, child)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(TreeOf, TreeOf)
def test_digests_are_equal_exactly_if_trees_are_equal(left: Json, right: Json) -> None:
    with temporary_folder() as one, temporary_folder() as two:
        for folder in (one, two):
            folder.chmod(0o755)
        build(one, left)
        build(two, right)
        equal = digest_of(one)[0] == digest_of(two)[0]
        assert equal == (left == right)
        again = two / "again"
        again.mkdir()
        build(again, dict(reversed(left.items())))  # other inodes, other times, another order of entries
        assert digest_of(again)[0] == digest_of(one)[0]


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Goes at the end, closed folders in it too, which an ordinary user must open first."""
    made = Path(tempfile.mkdtemp())
    try:
        yield made
    finally:
        remove_tree(made)


def test_every_kind_of_change_is_seen(tmp_path: Path) -> None:
    """A write is seen even with the same size, the same mtime or at the same instant."""
    (tmp_path / "file").write_text("aaaa")
    os.utime(tmp_path / "file", ns=(0, 0))

    async def work(digester: Digester) -> None:
        seen = {await digester.key()}
        for number in range(30):
            (tmp_path / "file").write_text(f"{number:04}")
            os.utime(tmp_path / "file", ns=(0, 0))
            seen.add(await digester.key())
        (tmp_path / "file").chmod(0o600)
        seen.add(await digester.key())
        (tmp_path / "file").rename(tmp_path / "renamed")
        seen.add(await digester.key())
        assert len(seen) == 33

    run_with_digester(tmp_path, work)


def test_a_write_through_a_memory_map_is_seen_with_read_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a" * 10)

    async def work(digester: Digester) -> None:
        with (tmp_path / "file").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0:1] = b"b"
            while time.time_ns() < (tmp_path / "file").stat().st_ctime_ns + 2 * RACY_NS:
                before = await digester.key()
            before = await digester.key()
            mapped[0:1] = b"c"  # the page is dirty already: no time changes
            seen = await digester.key(read_again=True)
            assert seen != before
            assert seen == await digester.key() == digest_here(tmp_path)[0]
            mapped[0:1] = b"d"
            key, state = await digester.state(seen)
            assert (key, state["files"]["file"]["text"]) == (digest_here(tmp_path)[0], "d" + "a" * 9)

    run_with_digester(tmp_path, work)


def test_only_the_difference_of_a_changed_workspace_is_sent(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a", "b", "folder/c"):
        (tmp_path / name).write_text(name)

    async def work(digester: Digester) -> None:
        first = await digester.state(await digester.key())
        (tmp_path / "b").unlink()
        (tmp_path / "a").chmod(0o600)
        (tmp_path / "new").write_text("new")
        asked = await digester._ask({"op": "state", "since": first[0]})
        assert (sorted(asked["files"]), asked["removed"]) == (["a", "new"], ["b"])
        assert await digester.state(await digester.key()) == digest_here(tmp_path)
        (tmp_path / "new").unlink()
        (tmp_path / "a").chmod(0o644)
        (tmp_path / "b").write_text("b")
        assert await digester.state(await digester.key()) == first

    run_with_digester(tmp_path, work)


def test_masks_leave_out_files_that_differ_from_run_to_run(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("1")
    (tmp_path / "noise.log").write_text("now")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "entry").write_text("now")
    assert list(digest_of(tmp_path, masks=("*.log", "cache"))[1]["files"]) == ["kept"]


# --------------------------------------------------------------------------------------------------- trees that attack


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
def test_too_many_entries_are_too_large(tmp_path: Path, way: str) -> None:
    for number in range(100_001):
        os.symlink("x", tmp_path / str(number))  # noqa: PTH211 - a Path each would take most of the time
    assert "too large: more than 100000 entries" in refusal(tmp_path, limits=DigestLimits(seconds=300))


@pytest.mark.parametrize("way", ["forked"], indirect=True)
def test_a_hundred_thousand_entries_are_digested(tmp_path: Path, way: str) -> None:
    for number in range(100_000):
        os.symlink("x", tmp_path / str(number))  # noqa: PTH211
    _, state = digest_of(tmp_path, limits=DigestLimits(seconds=300))
    assert len(state["files"]) == 100_000


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
    churning.start()
    refusals: list[str] = []

    async def work(digester: Digester) -> None:
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
        churning.join()
    assert all("does not stand still" in said for said in refusals)


def test_a_dead_helper_is_replaced_by_one_with_the_same_digests(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")

    async def work(digester: Digester) -> None:
        before = await digester.state(await digester.key())
        digester._process.stdin.write(b"this is not JSON\n")
        await digester._process.wait()
        assert await digester.key() == before[0]
        (tmp_path / "file").write_text("2")
        assert await digester.state(await digester.key()) == digest_here(tmp_path)

    run_with_digester(tmp_path, work)


def test_a_workspace_that_ends_every_helper_has_no_digest(tmp_path: Path) -> None:
    """Stands for a crafted file that ends its helper: here each helper gets a line that ends it."""

    async def work(digester: Digester) -> None:
        await digester.key()
        start = digester._start_another

        async def start_broken() -> SandboxProcess:
            process = await start()
            process.stdin.write(b"this is not JSON\n")
            await process.wait()
            return process

        digester._start_another = start_broken
        digester._process.stdin.write(b"this is not JSON\n")
        await digester._process.wait()
        with pytest.raises(Undigestible, match="server 'desk': its state has no digest: the helper ended: "):
            await digester.key()

    run_with_digester(tmp_path, work)


def find_helper(digester: Digester) -> Path:
    """The helper's folder in /proc: the child of process 1 of its PID namespace."""
    first = digester._process.pid
    (helper,) = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return Path("/proc", helper)


def read_rights(helper: Path) -> dict[str, int]:
    said = dict(line.split(":\t", 1) for line in (helper / "status").read_text().splitlines())
    names = ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    return {name: int(said[name], 16) for name in names}


@pytest.mark.parametrize("way", ["forked"], indirect=True)
def test_a_forked_helper_can_read_its_workspace_and_change_nothing(tmp_path: Path, way: str) -> None:
    async def work(digester: Digester) -> None:
        await digester.key()
        helper = find_helper(digester)
        none = {"CapInh": 0, "CapBnd": 0, "CapAmb": 0}
        assert read_rights(helper) == {"CapEff": READ_ALL, "CapPrm": READ_ALL, **none, "NoNewPrivs": 1, "Seccomp": 2}
        seen = helper / "root" / "workspace"
        assert seen.samefile(tmp_path)
        assert os.statvfs(seen).f_flag & os.ST_RDONLY

    run_with_digester(tmp_path, work)


@pytest.mark.parametrize("way", ["forked"], indirect=True)
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_helper_that_ends_or_hangs_harms_no_other(tmp_path: Path, way: str, fault: signal.Signals) -> None:
    (tmp_path / "file").write_text("1")

    async def main() -> None:
        async with helpers(tmp_path, FileState(), count=3) as (before, bad, after):
            assert len({each._process.pid for each in (before, bad, after)}) == 3
            key = await bad.key()
            os.kill(int(find_helper(bad).name), fault)
            bad._timeout_s = 1.0
            if fault == signal.SIGSTOP:
                with pytest.raises(Undigestible, match="server 'desk': its state has no digest: no answer within 1 s"):
                    await bad.key()
            else:
                bad._timeout_s = 30.0
                assert await bad.key() == key
            assert await before.key() == await after.key() == key

    asyncio.run(main())


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


pytest_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest_git
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


@pytest_git
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


@pytest_git
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
