"""Records keep their stored spelling: fields that have another name now are read and written under the old one."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from records import episode, step

from gymcp.envs.audit.fingerprint import suite_digest
from gymcp.exchange.atif import to_atif
from gymcp.exchange.export import export
from gymcp.exchange.from_atif import from_atif
from gymcp.exchange.json_lines import from_line
from gymcp.exchange.source import open_source
from gymcp.store import TrajectoryStore, create_run
from gymcp.store.codec import unpack
from gymcp.store.database import FILE_NAME
from gymcp.types import (
    Action,
    EpisodeLimits,
    Fact,
    GoldTurn,
    Suite,
    Task,
    ToolCall,
    ToolOffer,
    ToolResult,
    Trajectory,
    UserScript,
)

BROKEN = ToolCall(id="c1", name="pay", arguments="{", parse_error="not JSON")
RENAMED = ToolCall(id="c2", name="pay", arguments={"to": "bob"})
RESULT = ToolResult(
    call_id="c2", content="paid", executed_call=ToolCall(id="c2", name="send", arguments={"who": "bob"})
)
RECORDED = replace(
    episode("old"),
    steps=(replace(step(0), action=Action(tool_calls=(BROKEN, RENAMED)), results=(RESULT,)),),
)
OLD_CALLS = [
    {"id": "c1", "name": "pay", "arguments": "{", "problem": "not JSON"},
    {"id": "c2", "name": "pay", "arguments": {"to": "bob"}, "problem": ""},
]
OLD_RESULT = {
    "call_id": "c2",
    "content": "paid",
    "is_error": False,
    "seconds": 0.0,
    "bytes": 0,
    "cost": 0.0,
    "made": {"id": "c2", "name": "send", "arguments": {"who": "bob"}, "problem": ""},
}
"""The JSON of these calls and of this result as gymcp wrote it before the fields were renamed."""


def record(folder: Path) -> None:
    with create_run(folder, {"agent": "x"}), TrajectoryStore.open(folder, write=True) as store:
        store.append(RECORDED, {})


def test_a_run_folder_keeps_the_stored_names(tmp_path: Path) -> None:
    record(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        ((payload,),) = connection.execute("SELECT payload FROM steps")
    (stored,) = unpack(payload)["steps"]
    assert (stored["action"]["tool_calls"], stored["results"]) == (OLD_CALLS, [OLD_RESULT])


def test_a_run_folder_with_the_stored_names_is_read(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(replace(RECORDED, steps=(step(0),)), {})
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        ((payload,),) = connection.execute("SELECT payload FROM steps")
        content = unpack(payload)
        content["steps"][0] |= {"action": {"text": "", "tool_calls": OLD_CALLS}, "results": [OLD_RESULT]}
        connection.execute("UPDATE steps SET payload = ?", (json.dumps(content).encode(),))
    with TrajectoryStore.open(tmp_path) as store:
        assert store.load(RECORDED.id) == RECORDED


def test_an_exported_line_keeps_the_stored_names_and_is_read(tmp_path: Path) -> None:
    record(tmp_path)
    with open_source(tmp_path) as source:
        export(source, "jsonl", tmp_path / "out.jsonl")
    line = json.loads((tmp_path / "out.jsonl").read_text())
    (stored,) = line["trajectory"]["steps"]
    assert (stored["action"]["tool_calls"], stored["results"]) == (OLD_CALLS, [OLD_RESULT])
    assert from_line(line, "line")[0] == RECORDED


def test_an_atif_document_keeps_the_stored_name_and_is_read(tmp_path: Path) -> None:
    record(tmp_path)
    with open_source(tmp_path) as source:
        (one,) = source.episodes()
        document = json.loads(json.dumps(to_atif(one, source.run)))
    (call, _) = next(part["tool_calls"] for part in document["steps"] if "tool_calls" in part)
    assert call["extra"]["gymcp"] == {"problem": "not JSON", "arguments": "{"}
    assert calls(from_atif(document, "document")[0]) == calls(one.trajectory) == [BROKEN, RENAMED]


def test_the_digest_of_a_suite_is_the_one_that_older_runs_recorded() -> None:
    gold = GoldTurn(calls=(ToolCall(id="1", name="pay", arguments={"to": "bob"}),), final_text="d")
    suite = Suite(name="s", version="1", tasks=(Task(id="t", prompts=("p",), gold=(gold,)),))
    assert suite_digest(suite) == "58a4f268a4356845"


def test_the_digest_of_a_task_with_every_field_is_the_one_that_older_runs_recorded() -> None:
    gold = GoldTurn(calls=(ToolCall(id="1", name="pay", arguments={"to": "bob"}),), final_text="d")
    task = Task(
        id="t",
        prompts=("p",),
        handbook="h",
        gold=(gold,),
        last_necessary=(0, 0),
        attack=gold,
        user=UserScript(scenario="sc", facts=(Fact(name="n", words=("w",), says="s"),)),
        offer=ToolOffer(servers=frozenset({"x"}), withheld=(frozenset({"b", "a"}),)),
        limits=EpisodeLimits(steps=3),
        tags=("q",),
    )
    assert suite_digest(Suite(name="s", version="1", tasks=(task,))) == "8f2ffb074a16ecef"


def calls(trajectory: Trajectory) -> list[ToolCall]:
    return [call for each in trajectory.steps for call in each.action.tool_calls]
