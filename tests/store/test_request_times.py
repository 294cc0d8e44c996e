"""Times of a model's requests, and its use without tokens: beside the steps, exported, read by every version."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from records import episode, write_run

from gymcp.errors import StoreError
from gymcp.exchange.export import export
from gymcp.exchange.importing import import_run
from gymcp.exchange.source import open_source
from gymcp.store import TrajectoryStore
from gymcp.store.codec import encode_steps, pack, unpack
from gymcp.store.database import FILE_NAME
from gymcp.types import Json, ModelUsage, RequestTimes, Trajectory

USAGE = ModelUsage(model="m", prompt_tokens=30, completion_tokens=5, cost=0.25)
WHOLE, STREAMED = RequestTimes(request_s=1.25), RequestTimes(request_s=2.5, first_token_s=0.125)


def record_timed(*times: RequestTimes | None) -> Trajectory:
    shown = episode("pay", steps=len(times))
    steps = (replace(step, request_times=each) for step, each in zip(shown.steps, times, strict=True))
    return replace(shown, steps=tuple(steps))


def record_used() -> Trajectory:
    shown = episode("pay", steps=2)
    return replace(shown, steps=(shown.steps[0], replace(shown.steps[1], model_usage=USAGE)))


def payloads(record: Trajectory) -> list[Json]:
    return [unpack(row.payload) for row in encode_steps(record.steps)[0]]


def test_times_come_back_from_the_store(tmp_path: Path) -> None:
    record = record_timed(WHOLE, None, STREAMED)
    with TrajectoryStore.open(write_run(tmp_path, record)) as store:
        assert store.load(record.id) == record


def test_the_use_of_a_model_comes_back_from_the_store(tmp_path: Path) -> None:
    with TrajectoryStore.open(write_run(tmp_path, record_used())) as store:
        assert store.load(record_used().id) == record_used()
    (used,), (plain,) = payloads(record_used()), payloads(record_timed(None, None))
    assert used["steps"] == plain["steps"]  # an earlier version refuses a step with a field that it does not know
    assert used.keys() - plain.keys() == {"model_usage"}


@pytest.mark.parametrize("usage", [[1], [None, "much"], [None, {"model": 1}], [None, {"tokens": 5}]])
def test_an_invalid_use_from_elsewhere_is_refused(tmp_path: Path, usage: Json) -> None:
    write_run(tmp_path, record_used())
    (payload,) = payloads(record_used())
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE steps SET payload = ?", (pack({**payload, "model_usage": usage}),))
    with TrajectoryStore.open(tmp_path) as store, pytest.raises(StoreError):
        store.load(record_used().id)


def test_a_run_without_times_still_reads(tmp_path: Path) -> None:
    record = record_timed(None, None)
    assert all("request_times" not in payload for payload in payloads(record))
    with TrajectoryStore.open(write_run(tmp_path, record)) as store:
        assert [step.request_times for step in store.load(record.id).steps] == [None, None]


def test_steps_keep_the_fields_that_earlier_versions_read() -> None:
    """An earlier version reads only ``steps`` and ``kinds``, and refuses a step with a field that it does not know."""
    (with_times,), (without,) = payloads(record_timed(WHOLE, None)), payloads(record_timed(None, None))
    assert with_times["steps"] == without["steps"]
    assert (with_times.keys() - without.keys(), with_times["request_times"]) == (
        {"request_times"},
        [[1.25, None], None],
    )


@pytest.mark.parametrize("times", [[1], [[1.0, "soon"], None], [[1.0], None], [{"request_s": 1.0}, None], 7])
def test_invalid_times_from_elsewhere_are_refused(tmp_path: Path, times: Json) -> None:
    record = record_timed(WHOLE, None)
    write_run(tmp_path, record)
    (payload,) = payloads(record)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE steps SET payload = ?", (pack({**payload, "request_times": times}),))
    with TrajectoryStore.open(tmp_path) as store, pytest.raises(StoreError):
        store.load(record.id)


@pytest.mark.parametrize("format", ["jsonl", "atif"])
@pytest.mark.parametrize("record", [record_timed(STREAMED, None, WHOLE), record_used()], ids=["times", "use"])
def test_exports_carry_times_and_use(tmp_path: Path, record: Trajectory, format: str) -> None:
    run, out, back = write_run(tmp_path / "run", record), tmp_path / "out", tmp_path / "back"
    with open_source(run) as source:
        export(source, format, out)
    import_run(out, back)
    with TrajectoryStore.open(back) as store:
        (row,) = store.summaries()
        assert store.load(row.id).steps == record.steps


def test_an_atif_document_holds_the_times_in_its_metrics(tmp_path: Path) -> None:
    with open_source(write_run(tmp_path / "run", record_timed(STREAMED, None))) as source:
        export(source, "atif", tmp_path / "out")
    (file,) = (tmp_path / "out").iterdir()
    agents = [step for step in json.loads(file.read_text())["steps"] if step["source"] == "agent"]
    assert [step.get("metrics") for step in agents] == [{"extra": {"gymcp": {"request_times": [2.5, 0.125]}}}, None]
