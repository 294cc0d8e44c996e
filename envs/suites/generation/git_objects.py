"""Names of git's objects where authors and times are fixed: what a repository will be, without git."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gymcp.errors import GraderError
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
"""For a git server whose commits are to have these names."""


def commit_name(files: Mapping[str, str], message: str, parent: str | None = None) -> str:
    """Of the commit of these files, none of which is in a folder; git ends a message with a line end."""
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
    """The entries of an index with these files, as a recorded state has them."""
    return [[path, "100644", object_name("blob", text.encode()), 0] for path, text in sorted(files.items())]


def repository_equals(*, target_key: str | None = None) -> Grader:
    """1 where HEAD, branches, index and work tree are the target's."""

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        files = final_files(trajectory, states)
        state = final_state(trajectory, states)
        if "refs" not in state:
            raise GraderError("no repository was recorded")
        refs = {name: found for name, found in state["refs"].items() if name.startswith("refs/heads/")}
        found = {"head": (state["head"] or "").strip(), "refs": refs, "index": state["index"], "files": files}
        difference = first_difference(found, target_of(task, target_key))
        return Score(value=float(difference is None), reason=f"in the repository {difference or 'all is right'}")

    return grade
