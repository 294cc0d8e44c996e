"""Graders for worlds of files: they compare files with the expected ones, as bytes or as a reader has read them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from gymcp.errors import GraderError
from gymcp.evaluators.graders.target import target_of
from gymcp.evaluators.json_diff import first_difference
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory

_RAISE_LIMIT = "raise FileState(recorded_file_bytes=..., recorded_bytes=...) of the server and run again"


def final_files_equal(*, target_key: str | None = None) -> Grader:
    """Grader: 1 if the last recorded files are the task's target (or its entry `target_key`), else 0.

    The target maps paths to texts, as ``initial_state["files"]`` does, and to None for an empty folder; folders with
    content are implied, and modes do not count. Grading raises GraderError if no files were recorded or the target is
    no such mapping.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        expected = target_of(task, target_key)
        if not isinstance(expected, Mapping):
            raise GraderError(f"task '{task.id}': the target is not a mapping of files")
        files = final_files(trajectory, states)
        difference = first_difference(
            {path: _fill_in(files[path], expected.get(path)) for path in files}, dict(expected)
        )
        if difference is None:
            return Score(value=1.0, reason="every file is as wanted")
        return Score(value=0.0, reason=f"at the end {difference}")

    return grade


def final_values_include(*, target_key: str | None = None) -> Grader:
    """Grader: 1 if what readers returned for the last files includes the task's target (or its entry `target_key`).

    The target maps paths to values as `gymcp.mcp_servers.spec.FileReader` describes them; objects may have more keys
    than the target's, at any depth. A file that is missing, that its reader cannot read, or whose value was too large
    to be recorded scores 0: an agent can cause each of them. Grading raises GraderError if a file has no reader, or if
    the target is no such mapping.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        expected = target_of(task, target_key)
        if not isinstance(expected, Mapping) or not expected:
            raise GraderError(f"task '{task.id}': the target is not a mapping of files")
        for path, value in expected.items():
            actual = final_value(trajectory, states, path)
            if isinstance(actual, NoValue):
                return Score(value=0.0, reason=f"at the end {path} {actual.reason}")
            if difference := first_difference({path: actual}, {path: value}, more_keys=True):
                return Score(value=0.0, reason=f"at the end {difference}")
        return Score(value=1.0, reason="the files have all that is wanted")

    return grade


@dataclass(frozen=True, slots=True)
class NoValue:
    """A file without a value, for a reason that the agent may have caused."""

    reason: str
    """Words that follow the file's path."""


def final_value(trajectory: Trajectory, states: StateReader, path: str) -> Json | NoValue:
    """Value of the file's reader for the last state; `NoValue` if the file is missing, not of the reader's kind, or too
    large.

    Raises GraderError if no files were recorded, or if the file has no reader.
    """
    entry = _final_entries(trajectory, states).get(path)
    if entry is None:
        return NoValue("is missing")
    if "unreadable" in entry:
        return NoValue(f"cannot be read as {entry['reader']}: {entry['unreadable']}")
    if "value" in entry:
        return entry["value"]
    if "cut" in entry:
        return NoValue(f"was not recorded: {entry['cut']}; if a right file is so large, {_RAISE_LIMIT}")
    raise GraderError(
        f"file '{path}': has no reader: declare one, as in FileState(readers=(FileReader(files='{path}', kind=...),))"
    )


def final_bytes(trajectory: Trajectory, states: StateReader, path: str) -> bytes | NoValue:
    """Content of a file in the last state, as it was recorded; `NoValue` if the file is missing or was too large.

    Raises GraderError if no files were recorded, or if the file has a reader, whose value was recorded instead.
    """
    entry = _final_entries(trajectory, states).get(path)
    if entry is None or entry["type"] != "file":
        return NoValue("is missing")
    if "text" in entry:
        return str(entry["text"]).encode("utf-8", "surrogatepass")
    if "base64" in entry:
        return base64.b64decode(entry["base64"])
    if "reader" in entry:
        raise GraderError(f"file '{path}': the value of its reader was recorded instead of its bytes: use final_value")
    return NoValue(f"was not recorded: it has {entry['size']} bytes; if a right file is so large, {_RAISE_LIMIT}")


def final_files(trajectory: Trajectory, states: StateReader) -> dict[str, Json]:
    """The last recorded files by path: text, None for an empty folder, or the record of a file that is no text.

    Raises GraderError if none were recorded.
    """
    return texts_of(_final_state(trajectory, states))


def texts_of(state: Json) -> dict[str, Json]:
    """Files in one server's recorded state, in the form of `final_files`. Raises GraderError if it has none."""
    entries = _entries(state)
    parents = {str(parent) for path in entries for parent in PurePosixPath(path).parents}
    texts: dict[str, Json] = {}
    for path, entry in entries.items():
        if entry["type"] == "folder":
            if path not in parents:
                texts[path] = None
        elif "text" in entry:
            texts[path] = entry["text"]
        else:
            texts[path] = {name: value for name, value in entry.items() if name != "mode"}
    return texts


def _final_state(trajectory: Trajectory, states: StateReader) -> Json:
    return states(trajectory.final_state) if trajectory.final_state is not None else None


def _final_entries(trajectory: Trajectory, states: StateReader) -> Mapping[str, Mapping[str, Json]]:
    return _entries(_final_state(trajectory, states))


def _entries(state: Json) -> Mapping[str, Mapping[str, Json]]:
    """Recorded files by path. Raises GraderError if the state has none."""
    if not isinstance(state, Mapping) or not isinstance(state.get("files"), Mapping):
        raise GraderError("no files were recorded: the server's state is not read from files")
    files: Mapping[str, Mapping[str, Json]] = state["files"]
    return files


def _fill_in(found: Json, expected: Json) -> Json:
    """The expected text in place of a file of which only size and hash were recorded, if it has that hash."""
    if not isinstance(expected, str) or not isinstance(found, Mapping) or "sha256" not in found:
        return found
    content = expected.encode("utf-8", "surrogatepass")
    return expected if hashlib.sha256(content).hexdigest() == found["sha256"] else found
