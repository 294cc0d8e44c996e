"""Reasoning of models: recorded beside the steps, bounded, and exported nowhere."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from records import episode, write_run

from gymcp.agents.policies.openai.wire_format import MAX_REASONING_CHARS, parse_decision
from gymcp.agents.policies.prices import Price
from gymcp.exchange.export import export
from gymcp.exchange.source import open_source
from gymcp.store import TrajectoryStore
from gymcp.store.codec import MAX_ROW_BYTES, unpack
from gymcp.store.database import FILE_NAME
from gymcp.types import Decision, Json, Trajectory

THOUGHT = "I think of a needle. \ud800"


def thinking(*thoughts: str) -> Trajectory:
    shown = episode("pay", steps=len(thoughts))
    steps = (replace(step, reasoning=each) for step, each in zip(shown.steps, thoughts, strict=True))
    return replace(shown, steps=tuple(steps))


def payloads(folder: Path) -> list[Json]:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        return [unpack(payload) for (payload,) in connection.execute("SELECT payload FROM steps ORDER BY step")]


def decision(**message: Json) -> Decision:
    return parse_decision({"choices": [{"message": {"content": "Hello.", **message}}]}, "m", Price())


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_of_an_endpoint_comes_with_the_decision(key: str) -> None:
    found = decision(**{key: " I think. "})
    assert (found.reasoning, found.action.text) == ("I think.", "Hello.")


@pytest.mark.parametrize("value", [None, "", 3, ["a"], {"a": 1}])
def test_reasoning_of_another_type_is_left_out(value: Json) -> None:
    assert decision(reasoning_content=value).reasoning == ""
    assert decision().reasoning == ""


def test_a_megabyte_of_reasoning_is_cut_with_a_note() -> None:
    found = decision(reasoning="x" * 1_000_000)
    note = f"[cut: the first {MAX_REASONING_CHARS:,} of 1,000,000 characters]"
    assert found.reasoning == f"{'x' * MAX_REASONING_CHARS}\n{note}"
    assert found.action.text == "Hello."


def test_reasoning_comes_back_from_the_store(tmp_path: Path) -> None:
    record = thinking(THOUGHT, "", "More.")
    with TrajectoryStore.open(write_run(tmp_path, record)) as store:
        assert store.load(record.id) == record


def test_long_rows_are_split_with_their_reasoning(tmp_path: Path) -> None:
    long = "y" * (MAX_ROW_BYTES // 2 - 1000)
    record = thinking(long, "short", long, THOUGHT)
    with TrajectoryStore.open(write_run(tmp_path, record)) as store:
        assert [step.reasoning for step in store.load(record.id).steps] == [long, "short", long, THOUGHT]
    assert len(payloads(tmp_path)) > 1


def test_steps_keep_the_fields_that_earlier_versions_read(tmp_path: Path) -> None:
    """An earlier version reads only ``steps`` and ``kinds``, and refuses a step with a field that it does not know."""
    (with_reasoning,) = payloads(write_run(tmp_path / "a", thinking(THOUGHT, "")))
    (without,) = payloads(write_run(tmp_path / "b", thinking("", "")))
    assert with_reasoning["steps"] == without["steps"]
    assert (with_reasoning.keys() - without.keys(), with_reasoning["reasoning"]) == ({"reasoning"}, [THOUGHT, ""])


@pytest.mark.parametrize("format", ["jsonl", "atif"])
def test_exports_leave_reasoning_out(tmp_path: Path, format: str) -> None:
    run = write_run(tmp_path / "run", thinking("I think of a needle.", ""))
    out = tmp_path / "out"
    with open_source(run) as source:
        export(source, format, out)
    files = [out] if out.is_file() else sorted(out.iterdir())
    text = "".join(file.read_text() for file in files)
    assert "search" in text
    assert "needle" not in text
    assert "reasoning" not in text
