"""Trees in other formats: what is exported and imported again has the same branches; a csv says what it leaves out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from inner_command import gymcp
from recorded_trees import ALONE, PATHS, PLACES, RECORDS, write_tree_run
from verdicts import Verdicts

from gymcp.outcome import Outcome
from gymcp.store import BranchRecord, BranchRow, TrajectoryStore
from gymcp.types import Json, Trajectory

PLACED = [(name, place, shared, parent) for name, (parent, place, shared) in PLACES.items()]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_tree_run(tmp_path / "run")


def export(run: Path, format: str, *options: object) -> Path:
    out = run.parent / f"made.{format}"
    done = gymcp("export", run, "--format", format, "--out", out, *options)
    assert done.exit_code == 0, done.output
    return out


def import_again(path: Path) -> tuple[list[Trajectory], list[BranchRow]]:
    """First episodes and branches of the imported run; branches also as whole trajectories, after the first ones."""
    out = path.parent / f"from {path.name}"
    done = gymcp("import", path, "--out", out)
    assert (done.exit_code, "5 episodes" in done.output) == (0, True), done.output
    with TrajectoryStore.open(out) as store:
        branches = store.branches()
        return [*store.iter_trajectories(), *(store.load(row.episode.id) for row in branches)], branches


def places(branches: list[BranchRow]) -> list[tuple[str, str, int, str | None]]:
    return [(row.episode.id, row.branch, row.shared, row.episode.parent) for row in branches]


@pytest.mark.parametrize("format", ["atif", "jsonl"])
def test_a_tree_comes_back_as_it_was(format: str, run: Path) -> None:
    found, branches = import_again(export(run, format))
    assert found == [RECORDS["root"], ALONE, *(RECORDS[name] for name in PLACES)]
    assert places(branches) == PLACED
    assert [row.episode.steps for row in branches] == [2, 1, 1]
    assert [row.episode.tags for row in branches] == [("money",)] * 3


def test_parquet_brings_back_the_branches_with_what_its_columns_hold(run: Path) -> None:
    found, branches = import_again(export(run, "parquet"))
    assert places(branches) == PLACED
    wanted = [RECORDS["root"], ALONE, *(RECORDS[name] for name in PLACES)]
    for mine, theirs in zip(found, wanted, strict=True):
        same = ("id", "env", "task", "trial", "group", "parent", "outcome", "score")
        assert {name: getattr(mine, name) for name in same} == {name: getattr(theirs, name) for name in same}
        assert list(map(keep, mine.steps)) == list(map(keep, theirs.steps))


def keep(step: object) -> list[object]:
    """The part of a step that Parquet holds."""
    return [
        getattr(step, name) for name in ("turn", "observation", "action", "reward", "state_key", "valid", "sampled")
    ]


@pytest.mark.parametrize("format", ["parquet", "jsonl", "atif"])
def test_a_tree_whose_first_episode_has_no_step_comes_back(format: str, tmp_path: Path) -> None:
    """As a search records it whose answer gave up at once: all others began with fresh servers."""
    root = replace(RECORDS["root"], steps=(), outcome=Outcome.AGENT_ERROR, score=0.0)
    branches = [
        BranchRecord(trajectory=replace(RECORDS[id], parent="root"), branch=f"0.{number}", shared=0)
        for number, id in enumerate(("late", "later", "early"), 1)
    ]
    found, rows = import_again(export(write_tree_run(tmp_path / "run", root=root, branches=branches), format))
    assert places(rows) == [(each.trajectory.id, each.branch, 0, "root") for each in branches]
    assert (found[0].steps, found[0].outcome, found[0].score) == ((), Outcome.AGENT_ERROR, 0.0)
    wanted = [ALONE, *(each.trajectory for each in branches)]
    assert [list(map(keep, mine.steps)) for mine in found[1:]] == [list(map(keep, each.steps)) for each in wanted]


def test_each_step_of_a_tree_is_completed_in_one_row(run: Path) -> None:
    rows = pq.read_table(export(run, "parquet")).to_pylist()
    assert [(row["id"], [step["step"] for step in row["steps"]]) for row in rows] == [
        ("root", [0, 1, 2]),
        ("late", [2, 3]),
        ("later", [3]),
        ("early", [1]),
        ("alone", [0]),
    ]
    (late,) = (row for row in rows if row["id"] == "late")
    second, last = (step.sampled for step in RECORDS["late"].steps[2:])
    assert second is not None
    assert last is not None
    assert late["prompt_ids"] == list(second.prompt_ids)
    assert late["prompt_ids"] + late["completion_ids"] == [*last.prompt_ids, *last.ids]
    assert sum(late["env_mask"]) == 4
    assert [(span["start"], span["end"]) for span in late["policy_versions"]] == [(0, 2), (2, 4)]
    assert late["completion"][0]["content"] == "I refund."


def test_advantages_of_a_tree_preset_are_exported_with_every_step(run: Path) -> None:
    rows = pq.read_table(export(run, "parquet", "--preset", "treeps")).to_pylist()
    given = {row["id"]: [round(step["advantage"], 3) for step in row["steps"]] for row in rows}
    # V(s) - V(step before): 1/2, 1/3, 0 along the first episode; before the first step the task's mean, 1/2
    assert given == {
        "root": [0.0, -0.167, -0.333],
        "late": [0.167, 0.5],
        "later": [-0.5],
        "early": [0.5],
        "alone": [0.0],
    }
    documents = [json.loads(file.read_text()) for file in sorted(export(run, "atif", "--preset", "treeps").iterdir())]
    path = [step["extra"]["gymcp"] for step in documents[1]["steps"] if "extra" in step]
    assert [round(step["advantage"], 3) for step in path] == [0.0, -0.167, 0.167, 0.5]


def test_shared_steps_are_marked_as_copied_for_other_readers(run: Path) -> None:
    documents = [json.loads(file.read_text()) for file in sorted(export(run, "atif").iterdir())]
    copied = {document["trajectory_id"]: list(count_copied(document)) for document in documents}
    assert copied == {"root": [0, 3], "late": [2, 2], "later": [3, 1], "early": [1, 1], "alone": [0, 1]}


def count_copied(document: dict[str, Json]) -> Iterator[int]:
    """Number of the agent's steps that are marked as copied, and of those that are not."""
    for is_copied in (True, False):
        yield sum(
            step["source"] == "agent" and step.get("is_copied_context", False) is is_copied
            for step in document["steps"]
        )


@pytest.mark.xdist_group("harbor")
def test_harbors_own_schema_accepts_branches(run: Path, harbor: Verdicts) -> None:
    documents = [json.loads(file.read_text()) for file in sorted(export(run, "atif").iterdir())]
    assert [verdict["errors"] for verdict in harbor(documents)] == [[]] * 5


def test_a_csv_holds_first_episodes_and_says_so(run: Path) -> None:
    out = run.parent / "made.csv"
    done = gymcp("export", run, "--format", "csv", "--out", out)
    assert "3 branches are left out, because a csv has a line for each first episode" in done.output
    assert len(out.read_text().splitlines()) == 3
    assert json.loads(gymcp("export", run, "--format", "csv", "--out", out, "--json").stdout)["left_out"] == 3


def test_newest_grades_of_branches_are_exported(run: Path) -> None:
    with TrajectoryStore.open(run, write=True) as store:
        store.add_grade(replace(RECORDS["later"], score=0.75, reason="again"), grader="mine")
    for format in ("jsonl", "atif", "parquet"):
        _, branches = import_again(export(run, format))
        assert [row.episode.score for row in branches] == [PATHS["late"][1], 0.75, PATHS["early"][1]], format


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: lines[1:], "branch '2.1' of task 'pay': stands before the episode that it goes on from"),
        (lambda lines: [lines[0], lines[2]], "branch '2.1/3.1' of task 'pay': stands before the episode"),
        (lambda lines: [lines[0], place(lines[1], shared=9)], "it shares 9 steps and has 4"),
        (lambda lines: [lines[0], place(lines[1], shared=3)], "its first 3 steps are not those of the episode"),
        (lambda lines: [lines[0], place(lines[1], place=7)], "the place of a branch is a whole number"),
        (lambda lines: [lines[0], lines[1], lines[1]], "is already recorded"),
    ],
)
def test_branches_that_make_no_tree_are_one_error(change, says: str, run: Path) -> None:  # type: ignore[no-untyped-def]
    lines = export(run, "jsonl").read_text().splitlines()
    bad = run.parent / "bad.jsonl"
    bad.write_text("\n".join(change(lines)))
    done = gymcp("import", bad, "--out", run.parent / "again")
    assert done.exit_code != 0
    assert says in str(done.exception) + done.output


def place(line: str, **changes: Json) -> str:
    """The line of a branch with another place."""
    found = json.loads(line)
    return json.dumps({**found, "branch": {**found["branch"], **changes}})


def test_parquet_of_another_program_is_one_error(run: Path) -> None:
    table = pq.read_table(export(run, "parquet"))
    other = run.parent / "other.parquet"
    pq.write_table(table.drop_columns(["actions"]), other)
    assert "has no column 'actions'" in str(gymcp("import", other, "--out", run.parent / "again").exception)
    other.write_bytes(b"PAR1 no")
    assert "is not Parquet" in str(gymcp("import", other, "--out", run.parent / "again").exception)
