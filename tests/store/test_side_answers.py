"""Answers of the model beside the steps: recorded, exported, read back, and left out for readers that know none."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from records import episode

from gymcp.errors import StoreError
from gymcp.exchange.export import export
from gymcp.exchange.importing import import_run
from gymcp.exchange.source import open_source
from gymcp.store import TrajectoryStore, create_run
from gymcp.store.codec import encode_steps, pack, unpack
from gymcp.store.database import FILE_NAME
from gymcp.store.record_json import encode_side_answers
from gymcp.types import Action, Json, ModelUsage, Sampled, SideAnswer, ToolCall, Trajectory


def sample(prompt: tuple[int, ...], *ids: int) -> Sampled:
    spans = (("7", 0, len(ids)),)
    return Sampled(prompt_ids=prompt, ids=ids, logprobs=(-0.1,) * len(ids), versions=spans, finish="stop")


SPENT = ModelUsage(model="m", prompt_tokens=3, completion_tokens=2, cost=0.5)
CALL = ToolCall(id="9", name="ask_helper", arguments="{", parse_error="the arguments are broken")
TITLE = SideAnswer(step=0, context=1, asked="a title, \ud800", action=Action(text="T"), sampled=sample((1, 2), 3, 4))
ASKS = SideAnswer(step=1, context=2, action=Action(tool_calls=(CALL,)), sampled=sample((5, 6), 7), spent=SPENT)
GOES_ON = replace(ASKS, step=2, action=Action(text="so"), sampled=sample((5, 6, 7, 8), 9))
EDITED = replace(ASKS, step=2, sampled=sample((6, 7, 8), 9))
WORDS = SideAnswer(step=2, context=3, asked="sum up", action=Action(text="short"))


def record() -> Trajectory:
    shown = episode("pay", steps=2)
    first, second = shown.steps
    steps = (replace(first, context=0), replace(second, context=None))
    return replace(shown, steps=steps, side_answers=(TITLE, ASKS, GOES_ON, EDITED, WORDS))


def write(folder: Path, record: Trajectory) -> Path:
    with create_run(folder, {"env": "shop", "agent": "cmd:x"}), TrajectoryStore.open(folder, write=True) as store:
        store.append(record, {})
    return folder


def test_side_answers_come_back_from_the_store(tmp_path: Path) -> None:
    with TrajectoryStore.open(write(tmp_path, record())) as store:
        assert store.load(record().id) == record()
        (without,) = store.iter_trajectories(tokens=False)
    assert without.side_answers == tuple(replace(answer, sampled=None) for answer in record().side_answers)


def test_a_later_answer_of_a_context_stores_only_its_new_tokens() -> None:
    answers = encode_side_answers(record())["answers"]
    new = [answer["sampled"] and list(answer["sampled"]["prompt_ids"]) for answer in answers]
    assert new == [[1, 2], [5, 6], [8], [6, 7, 8], None]


def test_earlier_versions_read_the_steps_and_an_earlier_run_reads(tmp_path: Path) -> None:
    plain = replace(record(), side_answers=(), steps=episode("pay", steps=2).steps)
    assert encode_steps(record().steps) == encode_steps(plain.steps)
    assert encode_side_answers(plain) is None
    with TrajectoryStore.open(write(tmp_path, plain)) as store:
        assert store.load(plain.id) == plain
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("SELECT count(*) FROM blobs WHERE ref LIKE 'side:%'").fetchone() == (0,)


@pytest.mark.parametrize("format", ["jsonl", "atif"])
def test_exports_carry_side_answers(tmp_path: Path, format: str) -> None:
    written = replace(record(), side_answers=(replace(TITLE, asked="a title"), *record().side_answers[1:]))
    out, back = tmp_path / "out", tmp_path / "back"
    with open_source(write(tmp_path / "run", written)) as source:
        export(source, format, out)
    import_run(out, back)
    with TrajectoryStore.open(back) as store:
        found = store.load(store.summaries()[0].id)
    assert found.side_answers == written.side_answers
    assert [step.context for step in found.steps] == [0, None]


@pytest.mark.parametrize(
    "value",
    [
        7,
        {"contexts": [0], "answers": []},
        {"contexts": ["0", 1], "answers": []},
        {"contexts": [0, 1], "answers": [{}]},
        {"contexts": [0, 1], "answers": [{"step": 0, "context": 0, "action": 3, "spent": None, "sampled": None}]},
    ],
)
def test_side_answers_from_elsewhere_are_refused(tmp_path: Path, value: Json) -> None:
    write(tmp_path, record())
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE blobs SET payload = ? WHERE ref LIKE 'side:%'", (pack(value),))
    with TrajectoryStore.open(tmp_path) as store, pytest.raises(StoreError):
        store.load(record().id)


def test_an_answer_that_shares_more_tokens_than_there_are_is_refused(tmp_path: Path) -> None:
    write(tmp_path, record())
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        (payload,) = connection.execute("SELECT payload FROM blobs WHERE ref LIKE 'side:%'").fetchone()
        value = unpack(payload)
        value["answers"][2]["sampled"]["shared"] = 4
        connection.execute("UPDATE blobs SET payload = ? WHERE ref LIKE 'side:%'", (pack(value),))
    with TrajectoryStore.open(tmp_path) as store, pytest.raises(StoreError, match="shares 4 tokens"):
        store.load(record().id)
