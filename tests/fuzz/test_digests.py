"""Random trees of files: equal trees have equal digests, different trees different ones.

Here and in the tests of databases and repositories beside this file, a second description says what a world is, by
other means than the digester's: here by calls of the file system. Both leave out times, owners, holes, which of several
files with as many names are one, and users of access lists; a test shows it. One digester sees all changes of a world,
with what it remembers, and must agree with one that sees the world for the first time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from digest_keys import Op, ask_fresh_key, ask_key, fuzz_settings, make_folders, open_service
from hypothesis import example, given
from hypothesis import strategies as st

from gymcp.mcp_servers.workspaces.copying import copy_tree

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


@fuzz_settings
@given(st.lists(FileOp, max_size=12), st.lists(FileOp, max_size=12), st.lists(FileOp, min_size=1, max_size=3))
@example([("write", "a", b"1"), ("link", "a", "b")], [("write", "a", b"1"), ("write", "b", b"1")], [("touch", "a")])
@example([("write", "a", b"1"), ("attribute", "a", b"1")], [("write", "a", b"1")], [("attribute", "a", None)])
@example([("chmod", ".", 0o700)], [], [("attribute", ".", b"1")])
@example([("write", "a", b""), ("hole", "a")], [("write", "a", b"\0" * 70_000)], [("rename", "a", "b")])
def test_trees_have_one_digest_exactly_if_they_look_alike(
    left: Sequence[Op], right: Sequence[Op], more: Sequence[Op]
) -> None:
    with make_folders(3) as (one, two, copy):
        for op in left:
            do_to_files(one, op)
        for op in right:
            do_to_files(two, op)
        kept = open_service(one, "workspace")
        before, seen = ask_key(kept), tree_of(one)
        assert (before == ask_fresh_key(two, "workspace")) == (seen == tree_of(two))
        copy.rmdir()
        copy_tree(one, copy)
        assert (ask_fresh_key(copy, "workspace"), tree_of(copy)) == (before, seen)
        for op in more:
            do_to_files(one, op)
            now = ask_key(kept)
            assert now == ask_key(kept, again=True) == ask_fresh_key(one, "workspace")
            assert (now == before) == (tree_of(one) == seen)
            do_to_files(copy, op)
            assert ask_fresh_key(copy, "workspace") == now  # a copy goes the way of its original
        os.close(kept._root)


def test_trees_are_digested_without_the_documented_parts() -> None:
    with make_folders(2) as (one, two):
        for folder, pairs in ((one, ("ab", "cd")), (two, ("ac", "bd"))):
            for pair in pairs:
                (folder / pair[0]).write_bytes(b"\0" * 4096)
                os.link(folder / pair[0], folder / pair[1])
        os.truncate(two / "a", 0)
        os.truncate(two / "a", 4096)  # a hole
        os.utime(two / "a", ns=(0, 0))
        assert ask_fresh_key(one, "workspace") == ask_fresh_key(two, "workspace")
        with socket.socket(socket.AF_UNIX) as listener:  # named, not asked
            listener.bind(str(one / "socket"))
            assert ask_fresh_key(one, "workspace") != ask_fresh_key(two, "workspace")
