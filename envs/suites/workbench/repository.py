"""A model of a repository that needs no git: commits, branches, index and work tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymcp.envs.suites.generation.git_objects import commit_name, index_of
from gymcp.types import Json

_SCRIPT = """set -e
cd repo
git init -q -b main
while [ $# -gt 0 ]; do
  case "$1" in
    write) printf %s "$3" > "$2"; shift 3 ;;
    commit) git add -A; git commit -q -m "$2"; shift 2 ;;
  esac
done
"""


class Repository:
    """A repository with files at the top only. `change` and `save` fill it; then `run` has the effects of calls."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        """The work tree."""
        self._steps: list[str] = []
        self._committed: dict[str, dict[str, str]] = {}
        self._branches: dict[str, str] = {}
        self._head = "main"
        self._index: dict[str, str] = {}
        self.change({"main.cfg": "mode = plain\n"})
        self.save("Start")

    def change(self, files: Mapping[str, str]) -> None:
        """Write files."""
        self.files = {**self.files, **files}
        for path, text in files.items():
            self._steps += ["write", path, text]

    def save(self, message: str) -> str:
        """Commit everything; the result is the name of the commit."""
        self._steps += ["commit", message]
        self._index = dict(self.files)
        return self._commit(f"{message}\n")  # the command line ends a message with a line end, the server does not

    def seed(self) -> Json:
        """The initial state of the server ``git``."""
        return {"files": {"repo": None}, "commands": [["sh", "-c", _SCRIPT, "seed", *self._steps]]}

    def run(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Apply the effect of a call; a call that only reads has none."""
        if tool == "git_add":
            self._index = {**self._index, **{path: self.files[path] for path in arguments["files"]}}
        elif tool == "git_reset":
            self._index = dict(self._committed[self._branches[self._head]])
        elif tool == "git_commit":
            self._commit(arguments["message"])
        elif tool == "git_create_branch":
            base = arguments.get("base_branch") or self._head
            self._branches[arguments["branch_name"]] = self._branches[base]
        elif tool == "git_checkout":
            if self._branches[arguments["branch_name"]] != self._branches[self._head]:
                raise ValueError("only a switch to a branch at the same commit can be modelled")
            self._head = arguments["branch_name"]

    def state(self) -> Json:
        """The state of the repository, as `repository_equals` compares it."""
        return {
            "head": f"ref: refs/heads/{self._head}",
            "refs": {f"refs/heads/{name}": commit for name, commit in self._branches.items()},
            "index": index_of(self._index),
            "files": dict(self.files),
        }

    def _commit(self, message: str) -> str:
        parent = self._branches.get(self._head)
        if parent is not None and self._committed[parent] == self._index:
            raise ValueError(f"nothing to commit as {message!r}")
        name = commit_name(self._index, message, parent)
        self._committed[name] = dict(self._index)
        self._branches[self._head] = name
        return name
