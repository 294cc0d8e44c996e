"""Trees in the viewer, without a browser: their shape and values, pages of branches, lists that show roots alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_trees import PATHS, PLACES, RECORDS, make_credit, write_credited_tree_run, write_tree_run
from records import HOSTILE_TEXT

from gymcp.evaluators.report import write_report
from gymcp.evaluators.viewer.episode import comparison_object, episode_object
from gymcp.evaluators.viewer.runs import NotFound, open_runs
from gymcp.evaluators.viewer.trees.structure import Leaf, StepValue, draw_order, find_owners, value_steps
from gymcp.evaluators.viewer.trees.tree_object import compare_leaves, tree_object
from gymcp.store import BranchRecord, StepCredit, TrajectoryStore
from gymcp.store.database import FILE_NAME
from gymcp.types import Json

ROOT, ALONE, LATE, LATER, EARLY = 1, 2, 3, 4, 5
"""Numbers of the episodes in the viewer."""


def leaf(id: str, parent: str | None, shared: int, length: int, score: float | None) -> Leaf:
    return Leaf(
        n=0,
        id=id,
        branch=f"{shared}.1",
        parent=parent,
        shared=shared,
        length=length,
        score=score,
        outcome="",
        reason="",
    )


def test_a_step_s_value_is_the_mean_score_of_the_leaves_below_it() -> None:
    leaves = [
        leaf("a", None, 0, 3, 0.0),
        leaf("b", "a", 2, 3, 1.0),
        leaf("c", "b", 3, 4, None),
        leaf("d", "a", 0, 1, 0.5),
    ]
    values = value_steps(leaves)
    assert [(each.leaves, each.scored, each.mean) for each in values["a"]] == [(3, 2, 0.5), (3, 2, 0.5), (1, 1, 0.0)]
    assert values["b"] == [StepValue(leaves=2, scored=1, mean=1.0)]
    assert values["c"] == [StepValue(leaves=1, scored=0, mean=None)]
    assert values["d"] == [StepValue(leaves=1, scored=1, mean=0.5)]


def test_a_branch_belongs_to_the_episode_that_played_its_last_shared_step() -> None:
    leaves = [
        leaf("a", None, 0, 4, 0.0),
        leaf("b", "a", 2, 4, 1.0),
        leaf("c", "b", 1, 4, 1.0),
        leaf("x", "gone", 1, 2, 0.0),
    ]
    assert [(each.id, each.parent) for each in find_owners(leaves)] == [("a", None), ("b", "a"), ("c", "a")]


def test_lines_of_the_drawing_do_not_cross() -> None:
    leaves = [leaf("a", None, 0, 9, 0), leaf("1", "a", 1, 5, 0), leaf("3", "a", 3, 5, 0), leaf("3b", "3", 4, 5, 0)]
    assert [each.id for each in draw_order(leaves)] == ["a", "3", "3b", "1"]


def test_the_tree_of_a_task_is_drawn_with_values_and_changes(tmp_path: Path) -> None:
    with open_runs([write_tree_run(tmp_path / "run")], follow=False) as runs:
        tree = tree_object(runs, LATER)
        assert tree == {**tree_object(runs, ROOT), "n": LATER}
        assert (tree["task"], tree["total"], tree["solved"], tree["steps"], tree["path_steps"]) == ("pay", 4, 2, 7, 13)
        leaves = {each["branch"]: each for each in tree["leaves"]}
        assert list(leaves) == ["", "2.1", "2.1/3.1", "1.1"]
        assert [leaves[place]["parent"] for place in leaves] == [None, 0, 1, 0]
        shown = {place: [(*each["names"], each["value"]) for each in found["nodes"]] for place, found in leaves.items()}
        assert shown == {
            "": [("look", 0.5), ("ask", pytest.approx(1 / 3)), ("pay", 0.0)],
            "2.1": [("refund", 0.5), ("pay", 1.0)],
            "2.1/3.1": [("look", 0.0)],
            "1.1": [("pay", 1.0)],
        }
        changed = {place: [each["path"] for each in found["changes"]["changes"]] for place, found in leaves.items()}
        paid, refunds = ["order", "paid"], ["order", "refunds"]
        assert changed == {"": [paid], "2.1": [paid, refunds], "2.1/3.1": [], "1.1": [paid]}
        assert len(tree_object(runs, ALONE)["leaves"]) == 1
        with pytest.raises(NotFound, match="no episode 99"):
            tree_object(runs, 99)


def test_lists_and_figures_hold_roots_alone(tmp_path: Path) -> None:
    with open_runs([write_tree_run(tmp_path / "run"), write_tree_run(tmp_path / "other")], follow=False) as runs:
        rows = runs.index.page(0, "", "recorded", 0)["rows"]
        assert [(row["task"], row["branches"]) for row in rows] == [("pay", 3), ("look", 0)]
        assert [row["task"] for row in runs.index.page(0, "branches>0", "recorded", 0)["rows"]] == ["pay"]
        assert runs.index.page(0, "is:solved", "recorded", 0)["total"] == 1
        assert (runs.index.facets(0)["episodes"], runs.index.facets(0)["solved"]) == (2, 1)
        assert runs.index.searchable() == (0, 4)
        assert runs.index.pairs("", "all", 0)["total"] == 2
        assert runs.index.counterpart(LATE) == 6  # the root of the other run


def test_a_branch_has_a_page_of_its_whole_path(tmp_path: Path) -> None:
    run = write_tree_run(tmp_path / "run")
    with TrajectoryStore.open(run, write=True) as store:
        own = {name: len(path) - (PLACES[name][2] if name in PLACES else 0) for name, (path, _) in PATHS.items()}
        store.add_credits(credit(name, steps) for name, steps in own.items())
        store.add_grade(replace(RECORDS["later"], score=0.75, reason="again"), grader="mine")
    with open_runs([run], follow=False) as runs:
        shown = episode_object(runs, LATER, None)
        assert (shown["branch"], shown["shared"], shown["leaves"], shown["score"]) == ("2.1/3.1", 3, 4, 0.75)
        assert [step["calls"][0]["name"] for step in shown["steps"]] == ["look", "ask", "refund", "look"]
        assert shown["credits"][0]["advantages"] == (0.0, 0.0, 1.0, 2.0)
        assert [node["advantages"] for each in tree_object(runs, ROOT)["leaves"] for node in each["nodes"]] == [
            *([0.0], [0.0], [0.0]), *([1.0], [1.0]), [2.0], [3.0],
        ]  # fmt: skip
        assert episode_object(runs, ALONE, None)["leaves"] == 1


def test_the_preset_of_a_tree_is_one_that_its_leaves_have(tmp_path: Path) -> None:
    """The newest one gives credit to first episodes alone."""
    run = write_credited_tree_run(tmp_path / "run")
    with open_runs([run], follow=False) as runs:
        tree = tree_object(runs, ROOT)
        assert (tree["presets"], tree["total_presets"]) == (["treepo", "grpo"], 2)
        nodes = {each["branch"]: [node["advantages"] for node in each["nodes"]] for each in tree["leaves"]}
        assert nodes == {
            "": [[0.5, -0.5]] * 3, "2.1": [[0.25, None]] * 2, "2.1/3.1": [[0.25, None]], "1.1": [[0.25, None]],
        }  # fmt: skip


def credit(name: str, steps: int) -> StepCredit:
    """Credit of an episode's own steps: the place of the episode in `PATHS`."""
    return make_credit(name, "treepo", float(list(PATHS).index(name)), steps)


def test_two_leaves_stand_side_by_side(tmp_path: Path) -> None:
    with open_runs([write_tree_run(tmp_path / "run")], follow=False) as runs:
        both = comparison_object(runs, LATE, EARLY, None)
        assert (both["a"]["branch"], both["b"]["branch"]) == ("2.1", "1.1")
        assert both["parted"] == {"at": 1, "why": "they call different tools"}
        pairs: dict[str, Json] = compare_leaves(runs, ROOT)
        assert sorted(pairs) == ["1-3", "1-4", "1-5", "3-4", "3-5", "4-5"]
        assert pairs["3-5"]["parted"] == both["parted"]


def test_branches_appear_while_the_run_grows(tmp_path: Path) -> None:
    run = write_tree_run(tmp_path / "run", branches=())
    with open_runs([run], follow=False) as runs, TrajectoryStore.open(run, write=True) as store:
        before = runs.version()
        root = replace(RECORDS["root"], id="root-1", trial=1)
        branch = replace(RECORDS["early"], id="early-1", trial=1, parent="root-1")
        store.append(root, {}, branches=[BranchRecord(trajectory=branch, branch="1.1", shared=1)])
        runs.refresh()
        assert runs.version() != before
        assert [row["branches"] for row in runs.index.page(0, "", "recorded", 0)["rows"]] == [0, 0, 1]
        graded = runs.version()
        store.add_grade(replace(branch, score=0.5), grader="mine")
        runs.refresh()
        assert runs.version() != graded
        assert [each.score for each in runs.index.tree(3)] == [0.0, 0.5]


def test_unreadable_branches_do_not_hide_first_episodes(tmp_path: Path) -> None:
    run = write_tree_run(tmp_path / "run")
    with closing(sqlite3.connect(run / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE branches SET shared = 'x'")
    with open_runs([run], follow=False) as runs:
        assert runs.index.page(0, "", "recorded", 0)["total"] == 2
        (problem,) = runs.opened[0].problems
        assert "the number of shared steps is a text" in problem
        assert [each.id for each in runs.index.tree(ROOT)] == ["root"]
    summary = write_report(run)
    assert ("trees" in summary, summary["success"], len(summary["problems"])) == (False, 0.5, 1)


def test_a_branch_of_hostile_texts_is_shown(tmp_path: Path) -> None:
    odd = replace(RECORDS["early"], id=f"early {HOSTILE_TEXT}", reason=HOSTILE_TEXT)
    run = write_tree_run(
        tmp_path / "run", branches=[BranchRecord(trajectory=odd, branch=f"1.1{HOSTILE_TEXT}", shared=1)]
    )
    with open_runs([run], follow=False) as runs:
        shown = tree_object(runs, ROOT)["leaves"][1]
        assert (shown["branch"], shown["reason"]) == (f"1.1{HOSTILE_TEXT}", HOSTILE_TEXT[:200])
        assert episode_object(runs, LATE, None)["id"] == odd.id
