"""Names of git's objects for fixed authors and times: what a repository will be, computed without git."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gymcp.evaluators.graders import final_files
from gymcp.evaluators.graders.states import final_state
from gymcp.evaluators.graders.target import target_of
from gymcp.evaluators.json_diff import first_difference
from gymcp.mcp_servers.workspaces.seeds import FIXED_ENVIRONMENT
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory

WHEN = "1767225600 +0000"
WHO = f"{FIXED_ENVIRONMENT['GIT_AUTHOR_NAME']} <{FIXED_ENVIRONMENT['GIT_AUTHOR_EMAIL']}> {WHEN}"
ENVIRONMENT = {**FIXED_ENVIRONMENT, "GIT_AUTHOR_DATE": WHEN, "GIT_COMMITTER_DATE": WHEN}
"""Environment of a git server whose commits are to have these names."""


def commit_name(files: Mapping[str, str], message: str, parent: str | None = None) -> str:
    """The name of a commit of these files, none of which is in a folder.

    `message` ends as git stores it: the command line adds a line end.
    """
    tree = b"".join(
        f"100644 {path}".encode() + b"\0" + bytes.fromhex(object_name("blob", text.encode()))
        for path, text in sorted(files.items())
    )
    lines = [f"tree {object_name('tree', tree)}", *([f"parent {parent}"] if parent else [])]
    lines += [f"author {WHO}", f"committer {WHO}", "", message]
    return object_name("commit", "\n".join(lines).encode())


def object_name(kind: str, content: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(content)}".encode() + b"\0" + content).hexdigest()


def index_of(files: Mapping[str, str]) -> list[Json]:
    """The entries of an index with these files, as a recorded state holds them."""
    return [[path, "100644", object_name("blob", text.encode()), 0] for path, text in sorted(files.items())]


def repository_equals(*, target_key: str | None = None) -> Grader:
    """A grader that gives 1 if HEAD, branches, index and work tree are the target's."""

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        files = final_files(trajectory, states)
        state = final_state(trajectory, states)
        if "refs" not in state:
            return Score(value=0.0, reason="at the end there is no repository")
        refs = {name: commit for name, commit in state["refs"].items() if name.startswith("refs/heads/")}
        repository = {"head": (state["head"] or "").strip(), "refs": refs, "index": state["index"], "files": files}
        difference = first_difference(repository, target_of(task, target_key))
        return Score(value=float(difference is None), reason=f"in the repository {difference or 'all is right'}")

    return grade
