"""The digest helper in its real sandbox, on honest and on hostile trees."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from digest_service import LATER, write_workbook
from digesting import digest_here, digest_of, run_with_digester, set_workspace_mode, way
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gymcp.mcp_servers.programs.digest.tree import RACY_NS
from gymcp.mcp_servers.spec import FileReader, FileState, Mask
from gymcp.mcp_servers.workspaces.digester import Digester, find_unused_masks
from gymcp.scratch import remove_tree
from gymcp.types import Json

__all__ = ["set_workspace_mode", "way"]  # the fixtures, used by every test

pytestmark = pytest.mark.usefixtures("bwrap")


def test_a_state_holds_bytes_types_modes_and_targets(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\r\n")
    (tmp_path / "bytes").write_bytes(b"\xff\x00")
    (tmp_path / "large").write_bytes(b"0" * 1_000_001)
    (tmp_path / "folder").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    (tmp_path / "text").chmod(0o755)
    _, state = digest_of(tmp_path)
    large = hashlib.sha256(b"0" * 1_000_001).hexdigest()
    assert state == {
        "files": {
            "text": {"type": "file", "mode": "755", "text": "hello\r\n"},
            "bytes": {"type": "file", "mode": "644", "base64": "/wA="},
            "large": {"type": "file", "mode": "644", "sha256": large, "size": 1_000_001},
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


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(TreeOf, TreeOf)
def test_digests_are_equal_exactly_if_trees_are_equal(left: Json, right: Json) -> None:
    with temporary_folder() as one, temporary_folder() as two:
        for folder in (one, two):
            folder.chmod(0o755)
        build(one, left)
        build(two, right)
        key = digest_of(one)[0]
        assert (key == digest_of(two)[0]) == (left == right)
        again = two / "again"
        again.mkdir()
        build(again, dict(reversed(left.items())))  # other inodes, other times, another order of entries
        assert digest_of(again)[0] == key


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
            assert await digester.key() == before  # the attack, which works on who believes the times
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


def test_readers_and_masks_work_in_the_sandbox_of_the_helper(tmp_path: Path) -> None:
    write_workbook(tmp_path / "a.xlsx", '<c r="A1"><v>7</v></c>')
    masks = (Mask(files="*.xlsx", kind="zip_timestamps"), Mask(files="*.log", kind="regex", pattern="1"))
    source = FileState(readers=(FileReader(files="*.xlsx", kind="xlsx"),), masks=masks)
    key, state = digest_of(tmp_path, readers=source.readers, masks=masks)
    assert state["files"]["a.xlsx"]["value"] == {"sheets": {"Sales": {"cells": {"A1": 7}, "formulas": {}}}}
    write_workbook(tmp_path / "a.xlsx", '<c r="A1"><v>7</v></c>', LATER)
    assert digest_of(tmp_path, readers=source.readers, masks=masks) == (key, state)
    assert find_unused_masks("desk", source) == ["'*.log' (regex)"]
    assert find_unused_masks("no world of it was opened", source) == []


def test_masks_leave_out_files_that_differ_from_run_to_run(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("1")
    (tmp_path / "noise.log").write_text("now")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "entry").write_text("now")
    assert list(digest_of(tmp_path, masks=("*.log", "cache"))[1]["files"]) == ["kept"]
