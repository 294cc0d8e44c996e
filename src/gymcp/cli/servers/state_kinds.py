"""The state kind that fits a server, from the files that trial calls have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from gymcp.mcp_servers.spec import FileState, StateSource
from gymcp.types import Json, Tool

MAX_NAMES = 3
"""Files that a reason names."""
_SQLITE, _SQLITE_BASE64 = "SQLite format 3", "U1FMaXRlIGZvcm1hdCAz"
"""Words with which every SQLite database begins."""
_SQLITE_NAMES = (".db", ".sqlite", ".sqlite3")
_BESIDE_SQLITE = ("-wal", "-shm", "-journal")

Files = Mapping[str, Json]
"""Recorded files by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChoice:
    """A state kind, and the reason for it."""

    state: StateSource
    reason: str


def choose_state(
    starts: Sequence[Files], end: Files | None, tools: Sequence[Tool], *, alike: bool, succeeded: bool = True
) -> StateChoice:
    """The state kind for a server.

    `starts`: files of fresh starts. `end`: files after the trial calls; None if they cannot be read. `alike`: True if
    the same call had the same answer on fresh starts. `succeeded`: True if any trial call did.
    """
    if end is None:
        return StateChoice(state="opaque", reason="its files cannot be read after the trial calls")
    if differing := sorted({path for start in starts[1:] for path in find_changes(starts[0], start)}):
        reason = f"fresh starts have different files ({_some(differing)}), so no reset would be the same"
        return StateChoice(state="opaque", reason=reason)
    changed = find_changes(starts[0], end)
    if changed:
        return StateChoice(
            state=state_kind(changed), reason=f"the trial calls changed files ({_some(sorted(changed))})"
        )
    unseen = f"no trial call {'changed a file in the working directory' if succeeded else 'succeeded'}"
    if end:
        reason = f"{unseen}, but the server starts with some files ({_some(sorted(end))})"
        return StateChoice(state=state_kind(end), reason=reason)
    if alike and all(tool.annotations.get("readOnlyHint") is True for tool in tools):
        reason = "it has no files, its tools say that they only read, and fresh starts answer alike"
        return StateChoice(state="stateless", reason=reason)
    if not succeeded:
        return StateChoice(state="opaque", reason=f"{unseen}, so nothing is known of what it keeps")
    reason = (
        f"{unseen}; no other place is watched, and what it keeps there or in memory cannot be seen: grade by calls "
        "and answers"
    )
    return StateChoice(state="opaque", reason=reason)


def find_changes(before: Files, after: Files) -> dict[str, Json]:
    """The files that differ, as they are afterwards; None for a file that is gone."""
    paths = before.keys() | after.keys()
    return {path: after.get(path) for path in paths if before.get(path) != after.get(path)}


def describe_state(state: StateSource) -> str:
    """The state kind as Python code."""
    if not isinstance(state, FileState):
        return f'"{state}"'
    parts = [f"kind={state.kind!r}"] if state.kind != "workspace" else []
    parts += [f"path={state.path!r}"] if state.path != "." else []
    return f"FileState({', '.join(parts)})".replace("'", '"')


def state_kind(changed: Files) -> StateSource:
    """State kind that fits the server's files: path -> recorded file, None for one that is gone."""
    if not changed:
        return "opaque"
    git = {path.partition("/.git/")[0] for path in changed if "/.git/" in f"/{path}"}
    if len(git) == 1:
        root = next(iter(git))
        return FileState(kind="git", path="." if root.startswith(".git") else root)
    plain = [path for path in changed if not path.endswith(_BESIDE_SQLITE) and not _is_folder(changed[path])]
    if len(plain) == 1 and _is_sqlite(plain[0], changed[plain[0]]):
        return FileState(kind="sqlite", path=plain[0])
    return FileState()


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:MAX_NAMES]) + (", ..." if len(paths) > MAX_NAMES else "")


def _is_folder(entry: Json) -> bool:
    return isinstance(entry, dict) and entry.get("type") == "folder"


def _is_sqlite(path: str, entry: Json) -> bool:
    if not isinstance(entry, dict):
        return False
    if "sha256" in entry or entry.get("text") == "":  # too large for its content to be recorded, or no table yet
        return PurePosixPath(path).suffix in _SQLITE_NAMES
    return str(entry.get("text", "")).startswith(_SQLITE) or str(entry.get("base64", "")).startswith(_SQLITE_BASE64)
