"""Credit of a tree whose first episode has no score that counts: the steps that its branches share have credit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from inner_command import gymcp
from recorded_trees import BRANCHES, PLACES, RECORDS, make_credit, write_tree_run
from records import stop

from gymcp.errors import StoreError
from gymcp.evaluators.viewer.episode import episode_object
from gymcp.evaluators.viewer.runs import open_runs
from gymcp.evaluators.viewer.trees.tree_object import tree_object
from gymcp.outcome import Outcome
from gymcp.store import BranchRecord, StepCredit, TrajectoryStore

CREDIT = {
    # V is 2/3 after look, of the leaves late, later and early, and of the task; 1/2 after ask and after refund
    "root": [0.0, 1 / 2 - 2 / 3],
    "late": [0.0, 1 / 2],
    "later": [-1 / 2],
    "early": [1 / 3],
    "alone": [0.0],
}
"""`treeps`, by hand: own steps of each episode."""


LOST = replace(RECORDS["root"], outcome=Outcome.ENV_INFRA, score=None)
PAUSED = stop(RECORDS["root"], "paused")
"""Stopped by a search, which says nothing about where the episode would have ended."""


@pytest.fixture(params=[LOST, PAUSED], ids=["lost", "paused by a search"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_tree_run(tmp_path / "run", root=request.param)


def test_credit_is_saved_for_the_steps_from_which_branches_went_on(run: Path) -> None:
    done = gymcp("credit", run, "--preset", "treeps", "--save", "--json")
    assert done.exit_code == 0, done.output
    said = {row["id"]: row["steps"] for row in json.loads(done.stdout)["advantages"]}
    with TrajectoryStore.open(run) as store:
        stored = {id: list(store.credits(id)[0].advantages) for id in CREDIT}
    assert said == stored == {id: pytest.approx(values) for id, values in CREDIT.items()}
    assert "look" in gymcp("credit", run, "--preset", "treeps").output
    with open_runs([run], follow=False) as runs:
        nodes = [leaf["nodes"] for leaf in tree_object(runs, 1)["leaves"]]
    assert [node["advantages"] for node in nodes[0]] == [*([pytest.approx(each)] for each in CREDIT["root"]), [None]]
    assert [node["value"] for node in nodes[0]] == [pytest.approx(2 / 3), 0.5, None]


def test_advantages_of_every_path_are_exported(run: Path) -> None:
    out = run.parent / "made.jsonl"
    assert gymcp("export", run, "--format", "jsonl", "--out", out, "--preset", "treeps").exit_code == 0
    lines = map(json.loads, out.read_text().splitlines())
    found = {line["trajectory"]["id"]: line.get("advantages") for line in lines}
    look, ask = map(pytest.approx, CREDIT["root"])
    assert found == {
        "root": [look, ask, None],
        "late": [look, ask, *CREDIT["late"]],
        "later": [look, ask, CREDIT["late"][0], *CREDIT["later"]],
        "early": [look, *map(pytest.approx, CREDIT["early"])],
        "alone": CREDIT["alone"],
    }


@pytest.mark.parametrize("format", ["parquet", "atif"])
def test_every_format_has_the_advantages_of_the_first_steps(format: str, run: Path) -> None:
    out = run.parent / f"made.{format}"
    assert gymcp("export", run, "--format", format, "--out", out, "--preset", "treeps").exit_code == 0
    if format == "parquet":
        found = {row["id"]: [step["advantage"] for step in row["steps"]] for row in pq.read_table(out).to_pylist()}
        assert found["root"] == [*map(pytest.approx, CREDIT["root"]), None]
        assert found["late"] == CREDIT["late"]
    else:
        document = json.loads(min(out.iterdir()).read_text())
        steps = [step["extra"]["gymcp"].get("advantage") for step in document["steps"] if step["source"] == "agent"]
        assert steps == [*map(pytest.approx, CREDIT["root"]), None]


def test_a_branch_that_ends_at_once_loses_no_advantage(tmp_path: Path) -> None:
    """It goes on after ask, and gives up with 1: no step is its own. V is 1/2 after ask, 3/5 after look."""
    quick = replace(RECORDS["late"], id="quick", parent="root", steps=RECORDS["root"].steps[:2])
    branches = (*BRANCHES, BranchRecord(trajectory=quick, branch="2.2", shared=2))
    run, out = write_tree_run(tmp_path / "run", branches=branches), tmp_path / "made.jsonl"
    assert gymcp("export", run, "--format", "jsonl", "--out", out, "--preset", "treeps").exit_code == 0
    lines = map(json.loads, out.read_text().splitlines())
    found = {line["trajectory"]["id"]: line.get("advantages") for line in lines}
    assert found["quick"] == [pytest.approx(0.0), pytest.approx(1 / 2 - 3 / 5)]
    assert [len(found[id]) for id in PLACES] == [4, 4, 2]


def test_fewer_steps_are_still_refused_for_an_episode_with_a_score(tmp_path: Path) -> None:
    with TrajectoryStore.open(write_tree_run(tmp_path / "run"), write=True) as store:
        credit = StepCredit(trajectory="root", preset="p", rewards=(0.0,), returns=(0.0,), advantages=(0.0,))
        with pytest.raises(StoreError, match=r"has 3 steps, not \[1\]"):
            store.add_credits([credit])


def test_an_episode_that_gets_no_credit_any_more_loses_what_was_saved_of_the_preset(tmp_path: Path) -> None:
    """Saved by a version that gave credit to paused episodes, too: now ``later`` is stopped, and no one went on."""
    later = BranchRecord(trajectory=stop(RECORDS["later"], "paused"), branch="2.1/3.1", shared=3)
    branches = tuple(later if each.branch == later.branch else each for each in BRANCHES)
    run = write_tree_run(tmp_path / "run", branches=branches)
    with TrajectoryStore.open(run, write=True) as store:
        store.add_credits(make_credit(id, preset, 9.0, 1) for id in ("later", "alone") for preset in ("treeps", "grpo"))
    assert gymcp("credit", run, "--preset", "treeps", "--save").exit_code == 0
    with TrajectoryStore.open(run) as store:
        stored = {id: {each.preset: each.advantages for each in store.credits(id)} for id in ("later", "alone")}
    assert stored == {"later": {"grpo": (9.0,)}, "alone": {"grpo": (9.0,), "treeps": (0.0,)}}


def test_credit_that_lacks_a_shared_step_is_not_shown_at_another(tmp_path: Path) -> None:
    """``late`` shares two steps with the first episode, which has credit of one."""
    run = write_tree_run(tmp_path / "run", root=PAUSED)
    with TrajectoryStore.open(run, write=True) as store:
        store.add_credits([make_credit("root", "treeps", 1.0, 1), make_credit("late", "treeps", 2.0, 2)])
        store.add_credits([make_credit("early", "treeps", 3.0, 1)])
    with open_runs([run], follow=False) as runs:
        shown = {leaf["branch"]: leaf["n"] for leaf in tree_object(runs, 1)["leaves"]}
        credits = {place: episode_object(runs, shown[place], None)["credits"] for place in ("1.1", "2.1")}
    assert [each["advantages"] for each in credits["1.1"]] == [(1.0, 3.0)]
    assert credits["2.1"] == []
