"""Trees in a run folder: each step is stored once, a branch is read with its whole path, figures count no branch."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from records import episode, step

from gymcp.errors import StoreError
from gymcp.outcome import Outcome
from gymcp.store import BranchRecord, StepCredit, TrajectoryStore
from gymcp.store.codec import unpack
from gymcp.store.database import FILE_NAME
from gymcp.types import Sampled, Step, Trajectory


def sampled_step(number: int, prompt: tuple[int, ...], drawn: tuple[int, ...]) -> Step:
    sampled = Sampled(prompt_ids=prompt, ids=drawn, logprobs=(-0.5,) * len(drawn), versions=(("v0", 0, len(drawn)),))
    return replace(step(number), sampled=sampled)


ONE = sampled_step(0, (1, 2), (3,))
TWO = sampled_step(1, (1, 2, 3, 4), (5,))
END = replace(sampled_step(2, (1, 2, 3, 4, 5, 6), (7,)), reward=1.0)
OTHER = sampled_step(3, (1, 2, 3, 4, 5, 6), (8,))
LAST = replace(sampled_step(4, (1, 2, 3, 4, 5, 6, 8, 9), (10,)), reward=0.5)
THIRD = sampled_step(5, (1, 2, 3, 4, 5, 6, 8, 9), (11,))

ROOT = replace(episode("a"), steps=(ONE, TWO, END))
CHILD = replace(ROOT, id="child", parent="a-0-0", steps=(ONE, TWO, OTHER, LAST), score=0.5)
GRANDCHILD = replace(ROOT, id="grandchild", parent="child", steps=(ONE, TWO, OTHER, THIRD), score=0.0)
BRANCHES = (
    BranchRecord(trajectory=CHILD, branch="2.1", shared=2, states={"state-x": {"rows": [1]}}),
    BranchRecord(trajectory=GRANDCHILD, branch="2.1/3.1", shared=3),
)


def write_tree(folder: Path) -> None:
    with TrajectoryStore.open(folder, write=True) as store:
        store.append(ROOT, {}, tags=("pay",), branches=BRANCHES)


def test_a_branch_is_read_with_its_whole_path(tmp_path: Path) -> None:
    write_tree(tmp_path)
    with TrajectoryStore.open(tmp_path) as store:
        assert [store.load(each.id) for each in (ROOT, CHILD, GRANDCHILD)] == [ROOT, CHILD, GRANDCHILD]
        bare = store.load("grandchild", tokens=False)
        assert bare.steps == tuple(replace(each, sampled=None) for each in GRANDCHILD.steps)
        assert store.state("state-x") == {"rows": [1]}


def test_figures_count_the_first_episode_of_a_tree_alone(tmp_path: Path) -> None:
    write_tree(tmp_path)
    with TrajectoryStore.open(tmp_path) as store:
        assert [row.id for row in store.summaries()] == ["a-0-0"]
        assert [record.id for record in store.iter_trajectories()] == ["a-0-0"]
        assert store.attempts() == {("a", 0): [Outcome.SCORED]}
        rows = store.branches()
    assert [(row.episode.id, row.branch, row.shared, row.episode.steps) for row in rows] == [
        ("child", "2.1", 2, 2),
        ("grandchild", "2.1/3.1", 3, 1),
    ]
    assert [(row.episode.score, row.episode.tags, row.episode.parent) for row in rows] == [
        (0.5, ("pay",), "a-0-0"),
        (0.0, ("pay",), "child"),
    ]


def test_a_step_and_its_tokens_are_stored_once(tmp_path: Path) -> None:
    write_tree(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        rows = connection.execute("SELECT payload, prompt_ids, ids FROM steps").fetchall()
        rows += connection.execute("SELECT payload, prompt_ids, ids FROM branch_steps ORDER BY trajectory").fetchall()
    names = [[each["state_key"] for each in unpack(payload)["steps"]] for payload, _, _ in rows]
    assert names == [["s0", "s1", "s2"], ["s3", "s4"], ["s5"]]
    prompts = [list(np.frombuffer(prompt, "<u2")) for _, prompt, _ in rows]
    assert prompts == [[1, 2, 4, 6], [6, 9], [9]]


def test_the_reward_of_a_parent_that_ended_at_the_branch_is_not_the_branch_s(tmp_path: Path) -> None:
    parent = replace(ROOT, steps=(ONE, replace(TWO, reward=1.0)))
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(parent, {}, branches=BRANCHES[:1])
        assert store.load("child") == CHILD
        assert store.load("a-0-0") == parent


def test_branches_of_an_attempt_that_does_not_count_are_kept_apart(tmp_path: Path) -> None:
    lost = replace(ROOT, outcome=Outcome.ENV_INFRA, score=None)
    again = replace(CHILD, id="again", parent="a-0-1")
    with TrajectoryStore.open(tmp_path, write=True) as store:
        assert store.append(lost, {}, branches=BRANCHES) == 0
        assert len(store.branches()) == 2
        assert store.append(replace(ROOT, id="a-0-1"), {}, branches=(replace(BRANCHES[0], trajectory=again),)) == 1
        assert [(row.episode.id, row.episode.attempt) for row in store.branches()] == [("again", 1)]
        assert [row.episode.latest for row in store.branches(latest=False)] == [False, False, True]


def test_a_run_without_branches_is_a_file_as_ever(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(episode("a"), {})
        assert store.branches() == []
    assert read_format(tmp_path) == 2
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(replace(ROOT, id="b-0-0", task="b"), {}, branches=())
    assert read_format(tmp_path) == 2
    (tmp_path / "tree").mkdir()
    write_tree(tmp_path / "tree")
    assert read_format(tmp_path / "tree") == 3


def read_format(folder: Path) -> int:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        (number,) = connection.execute("PRAGMA user_version").fetchone()
    return int(number)


@pytest.mark.parametrize(
    ("branches", "says"),
    [
        (BRANCHES[1:], "branch '2.1/3.1' of task 'a' trial 0: its parent 'child' is not recorded"),
        ((replace(BRANCHES[0], shared=4),), "shares 4 steps with a parent of 3 steps"),
        ((*BRANCHES, BRANCHES[0]), "branch '2.1' of task 'a' trial 0: is already recorded"),
        ((BRANCHES[0], replace(BRANCHES[1], branch="2.1")), "branch '2.1' of task 'a' trial 0: is already recorded"),
        ((replace(BRANCHES[0], trajectory=replace(CHILD, score=2.0)),), "'child' has the score 2.0"),
    ],
)
def test_a_malformed_tree_leaves_nothing_behind(branches: tuple[BranchRecord, ...], says: str, tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store:
        with pytest.raises(StoreError, match=says):
            store.append(ROOT, {}, branches=branches)
        assert (store.summaries(), store.branches()) == ([], [])
        store.append(ROOT, {}, branches=BRANCHES)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE branches SET parent = 'grandchild' WHERE id = 'child'", "do not come after those"),
        ("UPDATE branches SET shared = -1 WHERE id = 'child'", "do not come after those"),
        ("UPDATE branches SET shared = 9 WHERE id = 'child'", "shares 9 steps with an episode of 3"),
        ("UPDATE branches SET parent = 'nowhere' WHERE id = 'child'", "no trajectory 'grandchild'"),
        ("UPDATE branches SET steps = 7 WHERE id = 'grandchild'", "has 1 steps, and says 7"),
    ],
)
def test_branches_that_gymcp_has_not_written_are_one_line(change: str, says: str, tmp_path: Path) -> None:
    write_tree(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.execute(change)
    with TrajectoryStore.open(tmp_path) as store, pytest.raises(StoreError, match=says):
        store.load("grandchild")


def test_a_column_of_another_kind_is_one_line(tmp_path: Path) -> None:
    write_tree(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE branches SET shared = 'x'")
    with (
        TrajectoryStore.open(tmp_path) as store,
        pytest.raises(StoreError, match="the number of shared steps is a text"),
    ):
        store.branches()


def test_a_cancelled_tree_is_played_again(tmp_path: Path) -> None:
    cancelled: Trajectory = replace(ROOT, outcome=Outcome.CANCELLED, score=None)
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(cancelled, {})
        assert store.append(replace(ROOT, id="a-0-1"), {}) == 1


def test_a_branch_is_graded_again_and_its_record_stays(tmp_path: Path) -> None:
    write_tree(tmp_path)
    with TrajectoryStore.open(tmp_path, write=True) as store:
        before = store.change_counter()
        for score in (0.25, 1.0):
            store.add_grade(replace(CHILD, score=score, reason="again"), grader="mine", ground_truths={"a": 1})
        assert store.change_counter() == (before[0], before[1] + 2)
        assert [row.episode.score for row in store.branches()] == [1.0, 0.0]
        assert store.branches()[0].episode.grader == "mine"
        assert [grade.score for grade in store.grades("child")] == [0.25, 1.0]
        assert store.ground_truths("child") == {"a": 1}
        assert (store.load("child"), store.load("grandchild")) == (CHILD, GRANDCHILD)
        assert (store.grades("a-0-0"), store.grades("grandchild")) == ((), ())
        assert [row.score for row in store.summaries()] == [1.0]


def test_a_lost_branch_has_nothing_to_grade(tmp_path: Path) -> None:
    lost = replace(BRANCHES[0], trajectory=replace(CHILD, outcome=Outcome.ENV_INFRA, score=None))
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(ROOT, {}, branches=(lost,))
        with pytest.raises(StoreError, match="'child' ended in env_infra: nothing to grade"):
            store.add_grade(CHILD, grader="mine")


def test_credit_of_a_branch_is_that_of_its_own_steps(tmp_path: Path) -> None:
    write_tree(tmp_path)
    given = StepCredit(
        trajectory="child", preset="treepo", rewards=(0.0, 0.5), returns=(0.5, 0.5), advantages=(1.0, 2.0)
    )
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.add_credits([given])
        assert [(each.preset, each.advantages) for each in store.credits("child")] == [("treepo", (1.0, 2.0))]
        assert store.credits("a-0-0") == ()
        with pytest.raises(StoreError, match="has 2 steps, not"):
            store.add_credits([replace(given, advantages=(1.0,) * 4)])


def test_a_run_of_before_branches_were_graded_is_read_and_graded(tmp_path: Path) -> None:
    """A file of format 3 may have the two tables of branches alone."""
    write_tree(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    assert "branches" in names
    assert not names & {"branch_grades", "branch_credits"}
    with TrajectoryStore.open(tmp_path) as store:
        assert ([row.episode.grader for row in store.branches()], store.credits("child")) == ([None, None], ())
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.add_grade(replace(CHILD, score=1.0), grader="mine")
    with TrajectoryStore.open(tmp_path) as store:
        assert [row.episode.score for row in store.branches()] == [1.0, 0.0]
