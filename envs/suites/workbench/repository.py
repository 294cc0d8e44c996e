"""A repository as it will be, without git: commits, branches, index and work tree."""

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
    """Files at the top only. Made by `change` and `save`, and then what `run` does to it."""

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
        """Writes files."""
        self.files = {**self.files, **files}
        for path, text in files.items():
            self._steps += ["write", path, text]

    def save(self, message: str) -> str:
        """Commits everything; gives the name of the commit."""
        self._steps += ["commit", message]
        self._index = dict(self.files)
        return self._commit(f"{message}\n")  # the command line ends a message with a line end, the server does not

    def seed(self) -> Json:
        """What server git starts from."""
        return {"files": {"repo": None}, "commands": [["sh", "-c", _SCRIPT, "seed", *self._steps]]}

    def run(self, tool: str, given: Mapping[str, Any]) -> None:
        """Does what a call does; one that only reads does nothing."""
        if tool == "git_add":
            self._index = {**self._index, **{path: self.files[path] for path in given["files"]}}
        elif tool == "git_reset":
            self._index = dict(self._committed[self._branches[self._head]])
        elif tool == "git_commit":
            self._commit(given["message"])
        elif tool == "git_create_branch":
            base = given.get("base_branch") or self._head
            self._branches[given["branch_name"]] = self._branches[base]
        elif tool == "git_checkout":
            if self._branches[given["branch_name"]] != self._branches[self._head]:
                raise ValueError("only branches at the same commit can be told")
            self._head = given["branch_name"]

    def state(self) -> Json:
        """As `repository_equals` compares it."""
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
        made = commit_name(self._index, message, parent)
        self._committed[made] = dict(self._index)
        self._branches[self._head] = made
        return made
