"""Trees are graded again on the whole path of every branch, and no verdict is lost to a grader that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp

from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore

HEAD = "from gymcp.types import Score\n\n\ndef GRADE(task, trajectory, states):\n    "


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A played run with branches, and the environment file beside it."""
    folder = tmp_path_factory.mktemp("tree")
    (folder / "bank.py").write_text(BANK.read_text())
    words = ("--agent", "random", "--branch", "ways=2,episodes=4", "--out", "run")
    assert gymcp("eval", "bank.py", *words, cwd=folder).returncode == 0
    return folder


def scores(folder: Path) -> dict[str, float | None]:
    """Score of each episode by its task and its place in the tree."""
    with TrajectoryStore.open(folder / "run") as store:
        firsts = {f"{row.task} ": row.score for row in store.summaries()}
        return {**firsts, **{f"{row.episode.task} {row.branch}": row.episode.score for row in store.branches()}}


def test_each_branch_is_graded_on_its_whole_path(tree: Path) -> None:
    (tree / "long.py").write_text(f"{HEAD}return Score(value=min(1, len(trajectory.steps) / 100), reason='steps')\n")
    with TrajectoryStore.open(tree / "run") as store:
        branches = store.branches()
        wanted = {f"{row.task} ": row.steps / 100 for row in store.summaries()}
    assert len(branches) > 4
    wanted |= {f"{row.episode.task} {row.branch}": (row.shared + row.episode.steps) / 100 for row in branches}
    done = gymcp("grade", "run", "--grader", "long.py", "--json", cwd=tree)
    assert (done.returncode, json.loads(done.stdout)["changed"]) == (1, len(wanted))
    assert scores(tree) == wanted
    assert json.loads(done.stdout)["trees"]["branches"] == len(branches)
    credit = json.loads(gymcp("credit", "run", "--preset", "treepo", "--json", cwd=tree).stdout)["advantages"]
    assert {f"{row['task']} {row['branch']}": row["score"] for row in credit}.items() <= wanted.items()
    again = gymcp("grade", "run", "--grader", "long.py", cwd=tree)
    assert (again.returncode, "every score is what it was" in again.stdout) == (0, True)
    own = gymcp("grade", "run", cwd=tree)
    assert (own.returncode, f"trial 0 branch {branches[0].branch}: 0.0" in own.stdout) == (1, True)


def test_a_grader_that_fails_on_branches_leaves_their_verdicts(tree: Path) -> None:
    before = scores(tree)
    (tree / "picky.py").write_text(
        f"{HEAD}assert trajectory.parent is None, 'no branch'\n    return Score(value=0.5)\n"
    )
    done = gymcp("grade", "run", "--grader", "picky.py", cwd=tree)
    count = len(before) - 3
    assert done.returncode == 3
    said = f"failed on {count} of {len(before)} episodes; {count} of these keep the verdict they had"
    assert (said in done.stderr, " branch 1.1: grader raised" in done.stderr) == (True, True), done.stderr
    assert scores(tree) == {place: 0.5 if place.endswith(" ") else score for place, score in before.items()}
    with TrajectoryStore.open(tree / "run") as store:
        assert {row.episode.outcome for row in store.branches()} <= {Outcome.SCORED, Outcome.BUDGET_EXHAUSTED}
