"""Figures of runs whose episodes branched: success counts roots; leaves have figures of their own name."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from inner_command import gymcp
from recorded_trees import BRANCHES, RECORDS, write_tree_run
from records import stop

from gymcp.errors import StoreError
from gymcp.evaluators.metrics import measure_trees
from gymcp.evaluators.report import read_report, write_report
from gymcp.evaluators.viewer.runs import open_runs
from gymcp.evaluators.viewer.trees.tree_object import tree_object
from gymcp.store import TrajectoryStore
from gymcp.store.codec import pack
from gymcp.store.database import FILE_NAME
from gymcp.store.trees import stopped_leaves
from gymcp.types import Json

TREES: dict[str, Json] = {
    "trees": 2,
    "branched": 1,
    "branches": 3,
    "depth": 2,
    "leaves": {"fewest": 1, "mean": 2.5, "most": 4},
    "steps": 3 + 2 + 1 + 1 + 1,
    "path_steps": 3 + 4 + 4 + 2 + 1,
    "branches_used": {"tool_calls": 10, "tokens": 3 * 9 + 2 * 10, "cost": 1.5},
}


def test_success_counts_roots_and_leaves_have_figures_of_their_own(tmp_path: Path) -> None:
    summary = write_report(write_tree_run(tmp_path / "run"))
    found = summary["trees"]
    assert {key: found[key] for key in TREES} == TREES
    assert (summary["success"], summary["episodes"], summary["tool_calls"], summary["cost"]) == (0.5, 2, 4, 1.0)
    assert (found["success_of_roots"]["success"], found["success_of_leaves"]["success"]) == (0.5, 3 / 5)
    # two of the four leaves of `pay` succeed; `look` has one leaf
    assert found["pass_k_over_leaves"][:2] == [
        {"k": 1, "at": 0.75, "hat": 0.75, "tasks": 2},
        {"k": 2, "at": pytest.approx(5 / 6), "hat": pytest.approx(1 / 6), "tasks": 1},
    ]
    assert summary["pass_k"] == []


def test_every_form_of_the_report_names_leaves_as_such(tmp_path: Path) -> None:
    run = write_tree_run(tmp_path / "run")
    write_report(run)
    page = (run / "report.html").read_text()
    markdown = read_report([run], lambda run: {}).text("md").replace("\\", "")
    for said in ("pass@k over leaves", "success of roots: the first episodes", "2, 1 of them with branches"):
        assert said in page, said
        assert said in markdown, said
    assert gymcp("report", str(run)).output.replace("\n", " ").count("pass@1 over leaves 75.0 %") == 1
    printed = json.loads(gymcp("report", str(run), "--format", "json").output)
    assert printed["runs"][0]["trees"]["branches"] == 3


def test_a_run_without_branches_has_no_figures_of_trees(tmp_path: Path) -> None:
    run = write_tree_run(tmp_path / "run", branches=())
    assert "trees" not in write_report(run)
    assert "leaves" not in (run / "report.html").read_text()


def test_figures_are_those_of_the_newest_grades(tmp_path: Path) -> None:
    run = write_tree_run(tmp_path / "run")
    with TrajectoryStore.open(run, write=True) as store:
        store.add_grade(replace(RECORDS["later"], score=1.0), grader="mine")
        figures = measure_trees(store.summaries(), store.branches())
    assert figures is not None
    assert (figures.roots.success, figures.leaves.success) == (0.5, 4 / 5)


def test_leaves_that_a_search_stopped_count_in_no_success_of_leaves(tmp_path: Path) -> None:
    """The first episode and `later`, both with 0, are paused: three leaves are left."""
    stopped = {id: stop(RECORDS[id], end) for id, end in (("root", "paused"), ("later", "paused"))}
    branches = [replace(each, trajectory=stopped.get(each.trajectory.id, each.trajectory)) for each in BRANCHES]
    run = write_tree_run(tmp_path / "run", root=stopped["root"], branches=branches)
    found = write_report(run)["trees"]
    assert (found["leaves"], found["stopped_leaves"]) == (TREES["leaves"], 2)
    assert (found["success_of_roots"]["success"], found["success_of_leaves"]["success"]) == (0.5, 1.0)
    assert [(each["at"], each["hat"]) for each in found["pass_k_over_leaves"]] == [(1.0, 1.0)] * 2
    assert "leaves that the search stopped" in (run / "report.html").read_text()
    with open_runs([run], follow=False) as runs:
        tree = tree_object(runs, 1)
    assert (tree["total"], tree["scored"], tree["solved"]) == (4, 2, 2)
    assert [node["value"] for node in tree["leaves"][0]["nodes"]] == [1.0, 1.0, None]


@pytest.mark.parametrize("rest", ["{}", b"{}", b"xx", b'{"provenance": 7}', b"[" * 9_999, 7])
def test_an_unreadable_episode_counts_as_not_stopped_by_a_search(rest: str | bytes | int, tmp_path: Path) -> None:
    """It is `later`; the first episode is known to be paused, and only loading `later` says that it is broken."""
    branches = [replace(each, trajectory=stop(each.trajectory, "paused")) for each in BRANCHES]
    run = write_tree_run(tmp_path / "run", root=stop(RECORDS["root"], "paused"), branches=branches)
    with closing(sqlite3.connect(run / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE branches SET rest = ? WHERE id = 'later'", (rest,))
    assert write_report(run)["trees"]["stopped_leaves"] == 3
    with open_runs([run], follow=False) as runs:
        assert (tree_object(runs, 1)["total"], runs.opened[0].problems) == (4, [])
    assert gymcp("export", run, "--format", "csv", "--out", tmp_path / "made.csv").exit_code == 0
    with TrajectoryStore.open(run) as store, pytest.raises(StoreError, match="row of trajectory 'later'"):
        store.load("later")


def test_short_rows_that_decompress_to_much_are_not_read_on_and_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a file that holds a hundred of them; the limit is lowered to 40,000 bytes."""
    monkeypatch.setattr(stopped_leaves, "MAX_EPISODE_BYTES", 40_000, raising=False)
    monkeypatch.setattr(stopped_leaves, "BYTES_PER_FILE_BYTE", 0, raising=False)
    branches = [replace(each, trajectory=stop(each.trajectory, "paused")) for each in BRANCHES]
    run = write_tree_run(tmp_path / "run", branches=branches)
    long = pack({"provenance": {"search": {"end": "paused"}, "long": "x" * 30_000}})
    assert len(long) < 300
    with closing(sqlite3.connect(run / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE branches SET rest = ?", (long,))
    with TrajectoryStore.open(run) as store:
        assert len(store.stopped_leaves()) == 1


def test_a_tree_of_which_a_search_stopped_every_leaf_has_no_success_of_leaves(tmp_path: Path) -> None:
    branches = [replace(each, trajectory=stop(each.trajectory, "paused")) for each in BRANCHES]
    run = write_tree_run(tmp_path / "run", root=stop(RECORDS["root"], "paused"), branches=branches)
    found = write_report(run)["trees"]
    # the other task's only leaf is left
    assert (found["success_of_leaves"]["success"], found["success_of_leaves"]["episodes"]) == (1.0, 1)
    assert found["pass_k_over_leaves"] == []


def test_branches_do_not_enter_a_comparison(tmp_path: Path) -> None:
    solved = tuple(replace(each, trajectory=replace(each.trajectory, score=1.0)) for each in BRANCHES)
    write_tree_run(tmp_path / "plain", branches=())
    said = []
    for folder, branches in ((tmp_path / "1", BRANCHES), (tmp_path / "2", solved)):
        write_tree_run(folder / "tree", branches=branches)
        said.append(gymcp("compare", tmp_path / "plain", folder / "tree", "--json").output)
    assert said[0] == said[1]
    (pair,) = json.loads(said[0])["comparisons"][0]["pairs"]
    assert (pair["paired"]["tasks"], pair["paired"]["difference"], pair["noise_floor"]) == (2, 0.0, None)
