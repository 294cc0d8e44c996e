"""A run folder in which something was changed at random: a verb gives a result, or one line that says what is wrong.

The folder is made once; each example changes bytes, columns or JSON of a copy, and tries one verb.
"""

from __future__ import annotations

import functools
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from inner_command import gymcp
from recorded_runs import write_run

from gymcp.envs import load_env, load_spec
from gymcp.envs.audit.fingerprint import suite_digest
from gymcp.errors import GymcpError
from gymcp.evaluators.viewer.episode import episode_object
from gymcp.evaluators.viewer.runs import NotFound, open_runs
from gymcp.evaluators.viewer.summary import describe_runs
from gymcp.store import TrajectoryStore
from gymcp.store.database import FILE_NAME
from gymcp.types import Json

BANK = Path(__file__).parents[2] / "examples" / "bank.py"
COLUMNS: dict[str, tuple[str, ...]] = {
    "trajectories": (
        "id", "env", "task", "trial", "attempt", "seed", '"group"', "parent", "outcome", "score", "components",
        "reason", "steps", "usage", "tags", "rest",
    ),
    "steps": ("step", "payload", "prompt_ids", "ids", "logprobs"),
    "blobs": ("ref", "payload"),
    "grades": ("outcome", "score", "components", "reason", "graded_at", "grader"),
    "credits": ("preset", "options", "assigned_at", "rewards", "returns", "advantages"),
}  # fmt: skip
RECORDS = ("run.json", "training.json", "metrics.jsonl", "judge.json")
numbers = st.integers() | st.integers(-2, 300) | st.floats() | st.just(10**400)
values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=()), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
cells = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=16)
    | values.map(lambda value: json.dumps(value).encode())
    | values.map(json.dumps)
)


@functools.cache
def prepare_run() -> Path:
    """A run with episodes, a later grade and credits, and what a training and a judge leave beside it."""
    folder = Path(tempfile.mkdtemp(prefix="gymcp-fuzz-"))
    run = write_run(folder / "run", "react", paying=0, tasks=1, trials=2)
    with TrajectoryStore.open(run, write=True) as store:
        judged = replace(store.load("react-task000-0"), components={"judge": 1.0, "judge.verdicts": 1.0})
        store.add_grade(judged, grader="judge kind/1", ground_truths={"a": 1})
    judge = {"policy": "tiny", "rubric": "kind/1", "prompt_version": "1", "votes": 1, "judged": 6, "errors": 0}
    measured = {"items": 2, "agree": 0.5, "agree_ci95": [0.1, 0.9], "kappa": 0.1, "kappa_ci95": [0.0, 0.5]}
    (run / "judge.json").write_text(json.dumps({**judge, "agreement": measured}))
    rows = ({"iteration": n, "success": 0.5, "test/seeds/success": 0.25, "entropy": 1.0} for n in range(3))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with closing(sqlite3.connect(run / FILE_NAME)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
    write_run(folder / "other", "planner", paying=1, tasks=1, trials=2)
    for recorded in (run, folder / "other"):
        _name_the_bank(recorded)
    return folder


def _name_the_bank(run: Path) -> None:
    """The run becomes one of the bank's first task, so that it can be graded again."""
    suite = load_env(load_spec(str(BANK))).suite
    record = json.loads((run / "run.json").read_text())
    record["config"] |= {"source": str(BANK), "suite_version": suite.version, "suite_digest": suite_digest(suite)}
    (run / "run.json").write_text(json.dumps(record))
    with closing(sqlite3.connect(run / FILE_NAME)) as db:
        db.execute("UPDATE trajectories SET task = ? WHERE task = 'task000'", (suite.tasks[0].id,))
        db.commit()


@contextmanager
def copy_run() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gymcp-fuzz-") as folder:
        shutil.copytree(prepare_run(), folder, dirs_exist_ok=True)
        yield Path(folder) / "run"


ANY_COVERAGE = ("--min-coverage", "0")
"""The runs have lost episodes, by which they would not be compared."""
VERBS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "report": lambda run: ("report", run),
    "report of two": lambda run: ("report", run, run.parent / "other", "--format", "md", *ANY_COVERAGE),
    "compare": lambda run: ("compare", run, run.parent / "other", *ANY_COVERAGE),
    "jsonl": lambda run: ("export", run, "--format", "jsonl", "--out", run.parent / "out.jsonl"),
    "csv": lambda run: ("export", run, "--format", "csv", "--out", run.parent / "out.csv", "--attempts"),
    "atif": lambda run: ("export", run, "--format", "atif", "--out", run.parent / "out"),
    "parquet": lambda run: ("export", run, "--format", "parquet", "--out", run.parent / "out.parquet"),
    "credit": lambda run: ("credit", run),
    "learn": lambda run: ("learn", run, "--policy", "tiny"),
    "grade": lambda run: ("grade", run, "--env", BANK, "--grader", grader(run)),
    "judge agreement": lambda run: ("judge", "agreement", labels(run), "--run", run),
}


def grader(run: Path) -> Path:
    """A grader that needs no state, which these episodes lack."""
    file = run.parent / "grader.py"
    file.write_text(
        "from gymcp.types import Score\n\n\ndef GRADE(task, trajectory, states):\n    return Score(value=0.25)\n"
    )
    return file


def labels(run: Path) -> Path:
    file = run.parent / "labels.csv"
    file.write_text("id,label\nreact-task000-0,pass\n")
    return file


VERB = st.sampled_from((*VERBS, "view"))


def holds(run: Path, verb: str) -> None:
    """The verb ends with a result or a GymcpError of one line."""
    if verb == "view":
        see(run)
        return
    result = gymcp(*VERBS[verb](run))
    error = result.exception
    if isinstance(error, GymcpError):
        assert "\n" not in str(error), str(error)
    elif error is not None and not isinstance(error, SystemExit):
        raise error


def see(run: Path) -> None:
    """The viewer's list, and its page of each episode."""
    with suppress(GymcpError), open_runs([run]) as runs:
        describe_runs(runs)
        runs.index.page(0, "order", "recorded", 0)
        for n, _, _ in runs.index.ids(0, 0, 50):
            with suppress(GymcpError, NotFound):
                json.dumps(episode_object(runs, n, None))


@pytest.mark.parametrize("verb", [*VERBS])
def test_without_a_change_each_verb_reads_the_whole_folder(verb: str) -> None:
    """Control: a verb that refuses the folder as it is would try nothing of what is changed in it."""
    with copy_run() as run:
        result = gymcp(*VERBS[verb](run))
        assert result.exit_code == (1 if verb == "grade" else 0), result.output  # the grader says otherwise
        assert not isinstance(result.exception, GymcpError)


@given(VERB, st.sampled_from(sorted(COLUMNS)), st.data())
def test_columns(verb: str, table: str, data: st.DataObject) -> None:
    column = data.draw(st.sampled_from(COLUMNS[table]))
    cell = data.draw(cells)
    with copy_run() as run:
        change_column(run, table, column, cell)
        holds(run, verb)


def change_column(run: Path, table: str, column: str, cell: Json) -> None:
    with closing(sqlite3.connect(run / FILE_NAME)) as db, suppress(sqlite3.Error):
        db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT min(rowid) FROM {table})", (cell,))
        db.commit()


changes = st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)


@given(VERB, changes)
def test_bytes_of_the_database(verb: str, changes: list[tuple[float, bytes]]) -> None:
    with copy_run() as run:
        file = run / FILE_NAME
        content = bytearray(file.read_bytes())
        for place, new in changes:
            at = int(place * (len(content) - len(new)))
            content[at : at + len(new)] = new
        file.write_bytes(content)
        holds(run, verb)


@given(VERB, st.sampled_from(RECORDS), st.integers(0, 40), values)
@example("report", "run.json", 1, {"env": "\ud800"})
@example("report", "run.json", 12, None)
def test_records(verb: str, name: str, place: int, value: Json) -> None:
    """One value of a record, wherever it stands, becomes another."""
    with copy_run() as run:
        file = run / name
        if name == "training.json":
            file.write_text(json.dumps(training()))
            (run / "run.json").unlink()
        found = [json.loads(line) for line in file.read_text().splitlines()] if name.endswith("l") else read(file)
        change = _change_of(found, [place])
        replaced = change(value) if change else value
        lines = replaced if isinstance(replaced, list) else [replaced]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        holds(run, verb)


def read(file: Path) -> Json:
    return json.loads(file.read_text())


def training() -> dict[str, Json]:
    recipe = {"env": "backoffice", "name": "tiny", "seed": 0, "learn": {"iterations": 3}}
    return {"iteration": 2, "trackers": {}, "recipe": recipe, "ended": "finished"}


def _change_of(found: Any, left: list[int]) -> Callable[[Json], Json] | None:
    """A function that replaces the part with that number, counted depth first; None beyond the last."""
    pairs = list(found.items()) if isinstance(found, dict) else list(enumerate(found))
    for key, part in pairs:
        if left[0] == 0:
            return functools.partial(_with, found, key)
        left[0] -= 1
        if isinstance(part, dict | list) and (inner := _change_of(part, left)) is not None:
            return functools.partial(_within, found, key, inner)
    return None


def _with(found: Any, key: Any, value: Json) -> Json:
    copy = found.copy()
    copy[key] = value
    return copy


def _within(found: Any, key: Any, inner: Callable[[Json], Json], value: Json) -> Json:
    return _with(found, key, inner(value))


@given(VERB, st.sampled_from((*RECORDS, FILE_NAME, "judge-answers.jsonl")), st.binary(max_size=64))
@example("report", "run.json", b"[" * 100_000)
@example("report", "metrics.jsonl", b'{"iteration": 1, "success": "x"}\n')
def test_any_bytes_as_a_file(verb: str, name: str, content: bytes) -> None:
    with copy_run() as run:
        (run / name).write_bytes(content)
        holds(run, verb)
