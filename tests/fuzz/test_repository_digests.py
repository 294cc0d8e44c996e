"""Random repositories: equal ones have equal digests, different ones different digests, as `test_digests` says.

The second description comes from git. Both leave out objects, reflogs, packing, samples of hooks, and what git notes
beside the state (ORIG_HEAD, FETCH_HEAD).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from digest_keys import Op, ask_fresh_key, ask_key, fuzz_settings, make_folders, open_service
from hypothesis import example, given
from hypothesis import strategies as st

from gymcp.mcp_servers.workspaces.copying import copy_tree
from gymcp.mcp_servers.workspaces.seeds import FIXED_ENVIRONMENT

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


@pytest.mark.usefixtures("git_program")
@fuzz_settings
@given(st.lists(GitOp, max_size=2), st.lists(GitOp, min_size=1, max_size=1))
@example([("hook", "pre-commit", "false")], [("hook", "pre-commit.sample", "x")])
@example([("config", "core.pager", "x")], [("gc", "-q")])
@example([("update-index", "--assume-unchanged", "a")], [("status",)])
@example([("branch", "other")], [("pack-refs", "--all")])
def test_repositories_have_one_digest_exactly_if_git_tells_the_same(
    first: Path, ops: Sequence[Op], more: Sequence[Op]
) -> None:
    with make_folders(2) as (one, two):
        one.rmdir()
        copy_tree(first, one)
        for op in ops:
            do_to_repository(one, op)
        kept = open_service(one, "git")
        before, seen = ask_key(kept), read_by_git(one)
        two.rmdir()
        copy_tree(one, two)
        git(two, "status")  # refreshes the index: inodes and times
        assert ask_fresh_key(two, "git") == before
        for op in more:
            do_to_repository(one, op)
            now = ask_key(kept)
            assert now == ask_fresh_key(one, "git")
            assert (now == before) == (read_by_git(one) == seen)
        os.close(kept._root)


@pytest.mark.usefixtures("git_program")
def test_repositories_are_digested_without_the_documented_parts(first: Path) -> None:
    with make_folders(1) as (folder,):
        folder.rmdir()
        copy_tree(first, folder)
        before = ask_fresh_key(folder, "git")
        git(folder, "gc", "-q")
        shutil.rmtree(folder / ".git" / "logs")
        shutil.rmtree(folder / ".git" / "objects")
        for name in ("ORIG_HEAD", "FETCH_HEAD", "COMMIT_EDITMSG"):
            (folder / ".git" / name).write_text("x")
        (folder / ".git" / "hooks" / "x.sample").write_text("x")
        assert ask_fresh_key(folder, "git") == before
