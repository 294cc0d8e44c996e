from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from bfcl_replay import serve

from gymcp.envs.suites.bfcl.suite import replay
from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.mcp_servers.programs.bfcl import declare
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.types import Json, Suite

TREE = {"root": {"home": {"type": "directory", "contents": {"a": {"type": "directory", "contents": {}}}}}}
FILES = {"classes": ["GorillaFileSystem"], "config": {"GorillaFileSystem": TREE}, "long_context": False}


def _episode(
    files: SuiteFiles, setup: Json, *calls: tuple[str, Json]
) -> tuple[list[tuple[str, bool]], list[str], Json]:
    """(text, is_error) per call; the state's key after setup and after each call; the last state."""
    requests: list[Json] = [{"method": "gymcp/setup", "params": {"initialState": setup, "seed": 0}}]
    requests += [{"method": "tools/call", "params": {"name": name, "arguments": a}} for name, a in calls]
    requests += [{"method": "gymcp/state"}]
    numbered = [{"jsonrpc": "2.0", "id": index, **request} for index, request in enumerate(requests)]
    first, *answers, last = [answer["result"] for answer in serve(files, numbered)]
    texts = [(answer["content"][0]["text"], answer["isError"]) for answer in answers]
    keys = [first["stateKey"], *(answer["_meta"]["gymcp/stateKey"] for answer in answers)]
    return texts, keys, last["state"]


def test_results_are_upstreams_text_and_a_refusal_is_an_error(files: SuiteFiles) -> None:
    texts, _, _ = _episode(
        files,
        FILES,
        ("pwd", {}),
        ("mkdir", {"dir_name": "b"}),
        ("cd", {"folder": "nowhere"}),
        ("echo", {"content": "x", "file_name": None}),
        ("ls", {"b": True}),
    )
    assert texts == [
        ('{"current_working_directory": "/home"}', False),
        ("None", False),
        ('{"error": "cd: \'nowhere\': No such file or directory"}', True),
        ('{"terminal_output": "x"}', False),
        ("Error during execution: GorillaFileSystem.ls() got an unexpected keyword argument 'b'", True),
    ]


def test_reading_leaves_the_state_key_and_walking_changes_it(files: SuiteFiles) -> None:
    _, keys, state = _episode(files, FILES, ("ls", {}), ("cd", {"folder": "a"}), ("cd", {"folder": ".."}))
    assert keys[0] == keys[1] == keys[3] != keys[2]
    assert state["public"]["GorillaFileSystem"]["root"] == {"$directory": ["home", {"a": {"$directory": ["a", {}]}}]}
    assert state["private"]["GorillaFileSystem"]["_current_dir"] == "/"


def test_the_order_of_files_is_part_of_the_world_but_not_of_what_is_graded(files: SuiteFiles) -> None:
    touch = [("touch", {"file_name": name}) for name in ("x", "y")]
    _, one, first = _episode(files, FILES, *touch)
    _, other, second = _episode(files, FILES, *reversed(touch))
    assert first["public"] == second["public"]
    assert one[-1] != other[-1]


def test_a_file_in_two_places_at_once_is_another_world_than_two_files(files: SuiteFiles) -> None:
    make: list[tuple[str, Json]] = [("cd", {"folder": "a"}), ("touch", {"file_name": "f"}), ("cd", {"folder": ".."})]
    _, _, shared = _episode(files, FILES, *make, ("cp", {"source": "a", "destination": "b"}))
    assert shared["private"]["GorillaFileSystem"]["links"] == [["/b/f", "same", "/a/f"]]


def test_a_folder_copied_into_itself_can_still_be_declared(files: SuiteFiles) -> None:
    _, _, state = _episode(files, FILES, ("cp", {"source": "a", "destination": "a"}), ("cd", {"folder": "a"}))
    assert "$above" in json.dumps(state["public"])


def test_a_world_that_doubles_without_end_is_cut_off_and_the_server_lives(files: SuiteFiles) -> None:
    calls: list[tuple[str, Json]] = []
    for index in range(18):
        calls += [
            ("cp", {"source": "a", "destination": f"c{index}"}),
            ("mv", {"source": f"c{index}", "destination": "a"}),
        ]
    texts, _, state = _episode(files, FILES, *calls, ("pwd", {}))
    assert texts[-1] == ('{"current_working_directory": "/home"}', False)
    assert state["public"]["GorillaFileSystem"] == {"$unreadable": "_TooLarge"}


def test_drawing_a_random_number_changes_the_world_though_nothing_shows(files: SuiteFiles) -> None:
    setup = {"classes": ["VehicleControlAPI"], "config": {}, "long_context": False}
    _, keys, _ = _episode(files, setup, ("get_outside_temperature_from_google", {}))
    assert keys[0] != keys[1]


def test_mpmath_answers_though_it_is_imported_late(files: SuiteFiles) -> None:
    setup = {"classes": ["MathAPI"], "config": {}, "long_context": False}
    texts, keys, state = _episode(files, setup, ("logarithm", {"value": 8, "base": 2, "precision": 5}))
    assert texts == [("{'result': mpf('3.0')}", False)]
    assert keys[0] == keys[1]
    assert state == {"public": {"MathAPI": {}}, "private": {"MathAPI": {}}}


def test_two_servers_give_the_same_world(files: SuiteFiles, suite: Suite) -> None:
    setup = suite.tasks[150].initial_state
    assert _episode(files, setup)[1] == _episode(files, setup)[1]


def test_one_task_replayed_twice_in_one_run_starts_fresh(files: SuiteFiles, suite: Suite) -> None:
    task = suite.tasks[0]
    turns = [[{"name": call.name, "arguments": call.arguments} for call in turn.calls] for turn in task.gold]
    line = json.dumps({"id": task.id, "setup": task.initial_state, "turns": turns}) + "\n"
    first, second = partial(replay, files, get_sandbox("bwrap"))(2 * line).splitlines()
    assert first == second


class Same:
    """An object with public attributes: any such object can be declared."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({1: "a"}, {1.0: "a"}, True),
        ({1: "a"}, {"1": "a"}, False),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": True}, True),
        ((1, 2), [1, 2], False),
        ({3, 1, 2}, {1.0, 2.0, 3.0}, True),
        ({"$number:1": "a"}, {1: "a"}, False),
        ({"$set": [1]}, {1}, False),
        (None, "None", False),
        (0.1 + 0.2, 0.3, False),
    ],
)
def test_declared_states_are_equal_if_python_finds_the_values_equal(one: object, other: object, equal: bool) -> None:
    states = [json.loads(json.dumps(declare({"Same": Same(value=value)})["public"])) for value in (one, other)]
    assert (states[0] == states[1]) is (one == other) is equal
