"""Controllers that draw a step again: after a failed call, and in branches that begin before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tree_play import ByHand, add, call, count_env, following, play

from gymcp.agents.runner.trees.branch_steps import BranchSteps
from gymcp.agents.runner.trees.controller import GO_ON, Branch, Choice, Played, TreeBudget
from gymcp.agents.runner.trees.retry_errors import RetryErrors
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore
from gymcp.types import Action

DONE = Action(text="Counted.")


def act_badly_first(seed: int, number: int, is_branch: bool) -> Action:
    if number == 3:
        return DONE
    return add(1, number) if is_branch else call("add", number, wrong=1)


def always_fail(seed: int, number: int, is_branch: bool) -> Action:
    return DONE if number == 2 else call("add", number, wrong=1)


def test_a_step_with_a_failed_call_is_drawn_again(tmp_path: Path) -> None:
    play(count_env(), tmp_path, RetryErrors(retries=3), following(act_badly_first))
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
        steps = store.load(row.id).steps
    assert [step.action for step in steps] == [add(1, 1), add(1, 2), DONE]
    assert not any(result.is_error for step in steps for result in step.results)


def test_the_last_try_stays_however_it_failed(tmp_path: Path) -> None:
    tries: list[int] = []

    @dataclass(frozen=True)
    class Counting(RetryErrors):
        def after(self, played: Played) -> Choice:
            tries.append(played.tries)
            return RetryErrors.after(self, played)

    play(count_env(), tmp_path, Counting(retries=2), following(always_fail))
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
        steps = store.load(row.id).steps
    assert tries == [1, 2, 3]
    assert [result.is_error for step in steps for result in step.results] == [True]
    assert row.outcome is Outcome.SCORED


def count_and_end(seed: int, number: int, is_branch: bool) -> Action:
    return DONE if number == 3 else add(1 + is_branch, number)


class BeforeTheLast(ByHand):
    """Branches before step 2, after step 1 as well, and before the step that ended the episode."""

    def at_end(self, played: Played) -> Choice:
        return Branch(2, before=True) if not played.branch else GO_ON


def test_branches_begin_before_a_step_and_before_the_last_one(tmp_path: Path) -> None:
    def decide(played: Played) -> Choice:
        return Branch(2, before=played.number == 2) if not played.branch else GO_ON

    play(count_env(), tmp_path, BeforeTheLast(decide), following(count_and_end), TreeBudget(episodes=8))
    with TrajectoryStore.open(tmp_path) as store:
        paths = {row.branch: (row.shared, store.load(row.episode.id)) for row in store.branches()}
    assert {branch: shared for branch, (shared, _) in paths.items()} == {"1.1": 1, "1.2": 1, "2.1": 2}
    actions = {branch: [step.action for step in path.steps] for branch, (_, path) in paths.items()}
    assert actions == {
        "1.1": [add(1, 1), add(2, 2), DONE],
        "1.2": [add(1, 1), add(2, 2), DONE],
        "2.1": [add(1, 1), add(1, 2), DONE],
    }
    assert {path.score for _, path in paths.values()} == {0.0, 1.0}


def test_another_choice_than_a_branch_from_before_comes_too_late_at_the_end(tmp_path: Path) -> None:
    class TooLate(ByHand):
        def at_end(self, played: Played) -> Choice:
            return Branch(2)

    play(count_env(), tmp_path, TooLate(lambda played: GO_ON), following(count_and_end))
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
        assert not store.branches()
    assert row.outcome is Outcome.SCORED


def test_a_controller_is_told_the_branching_points_of_the_path(tmp_path: Path) -> None:
    """Those of a parent behind the point at which the episode began are none of its own."""
    points: dict[tuple[str, int], tuple[int, ...]] = {}

    @dataclass(frozen=True, kw_only=True)
    class Noting(BranchSteps):
        def after(self, played: Played) -> Choice:
            points[played.branch, played.number] = played.points
            return BranchSteps.after(self, played)

    def count_to_four(seed: int, number: int, is_branch: bool) -> Action:
        return DONE if number == 5 else add(1, number)

    controller = Noting(ways=2, depth=2, steps=frozenset({1, 3}))
    play(count_env(), tmp_path, controller, following(count_to_four), TreeBudget(episodes=4))
    assert points == {
        ("", 1): (), ("", 2): (1,), ("", 3): (1,), ("", 4): (1, 3),
        ("1.1", 2): (1,), ("1.1", 3): (1,), ("1.1", 4): (1, 3),
        ("3.1", 4): (1, 3),
        ("1.1/3.1", 4): (1, 3),
    }  # fmt: skip
