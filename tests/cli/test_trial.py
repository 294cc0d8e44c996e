"""The state kind that `gymcp new` writes fits the files that trial calls changed."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from gymcp.cli.servers.environment_file import describe_goal
from gymcp.cli.servers.state_kinds import StateChoice, choose_state, describe_state, state_kind
from gymcp.cli.servers.trial import Trial
from gymcp.mcp_servers.spec import FileState, StateSource
from gymcp.types import Json, Tool, ToolCall

TEXT: Json = {"type": "file", "text": "hello"}
FOLDER: Json = {"type": "folder"}
EMPTY: Json = {"type": "file", "text": ""}
LARGE: Json = {"type": "file", "sha256": "0" * 64, "size": 100_000}


@pytest.mark.parametrize(
    ("changed", "state", "code"),
    [
        ({}, "opaque", '"opaque"'),
        ({"kv.json": TEXT}, FileState(), "FileState()"),
        ({"a": FOLDER, "a/notes.db": LARGE}, FileState(kind="sqlite", path="a/notes.db"), None),
        ({"n.db": EMPTY, "n.db-wal": LARGE}, None, 'FileState(kind="sqlite", path="n.db")'),
        ({"notes.db": TEXT}, FileState(), None),
        ({"notes.db": LARGE, "kv.json": TEXT}, FileState(), None),
        ({"gone.txt": None}, FileState(), None),
        ({".git/HEAD": TEXT, "a.txt": TEXT}, FileState(kind="git"), 'FileState(kind="git")'),
        ({"repo/.git/HEAD": TEXT}, FileState(kind="git", path="repo"), None),
        ({"a/.git/HEAD": TEXT, "b/.git/HEAD": TEXT}, FileState(), None),
    ],
)
def test_the_kind_fits_the_changed_files(changed: dict[str, Json], state: StateSource | None, code: str | None) -> None:
    found = state_kind(changed)
    assert state is None or found == state
    assert code is None or describe_state(found) == code


def test_a_database_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "world")
    connection.execute("CREATE TABLE t (a)")
    connection.commit()
    connection.close()
    text = (tmp_path / "world").read_bytes().decode("latin-1")
    assert state_kind({"world": {"type": "file", "text": text}}) == FileState(kind="sqlite", path="world")


READS = Tool(name="get", description="", input_schema={}, annotations={"readOnlyHint": True})


@pytest.mark.parametrize(
    ("starts", "end", "alike", "state", "reason"),
    [
        ([{}, {}], {"kv.json": TEXT}, True, FileState(), "the trial calls changed files (kv.json)"),
        ([{"log": TEXT}, {"log": EMPTY}], {}, True, "opaque", "fresh starts have different files (log)"),
        (
            [{"n.db": EMPTY}] * 2,
            {"n.db": EMPTY},
            True,
            FileState(kind="sqlite", path="n.db"),
            "starts with some files (n.db)",
        ),
        ([{}, {}], {}, True, "stateless", "fresh starts answer alike"),
        ([{}, {}], {}, False, "opaque", "cannot be seen: grade by calls and answers"),
        ([{}, {}], None, True, "opaque", "cannot be read"),
    ],
)
def test_the_choice_of_a_state_has_a_reason(
    starts: list[dict[str, Json]], end: dict[str, Json] | None, alike: bool, state: StateSource, reason: str
) -> None:
    choice = choose_state(starts, end, (READS,), alike=alike)
    assert choice.state == state
    assert reason in choice.reason


def test_a_server_is_stateless_only_if_all_its_tools_say_that_they_read() -> None:
    writes = replace(READS, name="put", annotations={})
    assert choose_state([{}, {}], {}, (READS, writes), alike=True).state == "opaque"


@pytest.mark.parametrize(
    ("description", "arguments", "goal"),
    [
        ("Store a value. Under a key.", {"key": "a", "value": 1}, 'Store a value: key "a" and value 1.'),
        ("List all keys", {}, "List all keys."),
        ("", {"key": "a"}, 'Use the tool get: key "a".'),
        ("x" * 500, {}, "Use the tool get."),
    ],
)
def test_the_first_prompt_says_what_the_tool_does(description: str, arguments: dict[str, Json], goal: str) -> None:
    call = ToolCall(id="call_1", name="get", arguments=arguments)
    choice = StateChoice(state="opaque", reason="")
    trial = Trial(tools=(replace(READS, description=description),), call=call, state=choice)
    assert describe_goal(trial) == goal
