"""Actions that differ from a recorded episode's are replaced, and the model's own answers stay in the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tree_play import ByHand, add, count_env, following, play

from gymcp.agents.runner.trees.controller import GO_ON, Choice, Played, Replace, TreeBudget
from gymcp.agents.runner.trees.patch_mismatches import PatchMismatches, is_same_action
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore
from gymcp.types import Action, ToolCall, Trajectory

DONE = Action(text="done")
SHOWN = {"count": (add(1, 1), add(2, 2), DONE)}
"""A demonstration that solves the task in three steps."""


def play_patched(folder: Path, own: Callable[[int], Action], patches: int = 2, undone: int = 8) -> Trajectory:
    """The record of an agent whose own action in step n is `own(n)`."""
    controller = PatchMismatches(demonstrations=SHOWN, patches=patches)
    agents = following(lambda seed, number, is_branch: own(number))
    play(count_env(), folder, controller, agents, TreeBudget(undone=undone))
    with TrajectoryStore.open(folder) as store:
        (row,) = store.summaries()
        assert store.branches() == []
        return store.load(row.id)


def list_replaced(record: Trajectory) -> list[tuple[int, Action]]:
    assert all(answer.replaced for answer in record.own_side_answers)
    return [(answer.step, answer.action) for answer in record.own_side_answers]


def test_a_differing_action_is_replaced_and_the_episode_goes_on(tmp_path: Path) -> None:
    record = play_patched(tmp_path, lambda number: add(50, 2) if number == 2 else SHOWN["count"][number - 1])
    assert tuple(step.action for step in record.steps) == SHOWN["count"]
    assert list_replaced(record) == [(1, add(50, 2))]
    assert (record.outcome, record.score) == (Outcome.SCORED, 1.0)
    assert [result.content for step in record.steps for result in step.results] == ["1", "3"]


def test_an_answer_that_comes_too_early_is_replaced(tmp_path: Path) -> None:
    record = play_patched(tmp_path, lambda number: DONE if number == 1 else SHOWN["count"][number - 1])
    assert tuple(step.action for step in record.steps) == SHOWN["count"]
    assert list_replaced(record) == [(0, DONE)]
    assert (record.outcome, record.score) == (Outcome.SCORED, 1.0)


@pytest.mark.parametrize(("patches", "steps"), [(1, 2), (2, 3)])
def test_one_mismatch_too_many_ends_the_episode(tmp_path: Path, patches: int, steps: int) -> None:
    """With two patches, the third mismatch is at the step with which the episode ends by itself."""
    record = play_patched(tmp_path, lambda number: add(50 + number, number), patches)
    assert tuple(step.action for step in record.steps) == SHOWN["count"][:steps]
    assert list_replaced(record) == [(step, add(51 + step, step + 1)) for step in range(steps)]
    if patches == 1:
        assert record.outcome is Outcome.BUDGET_EXHAUSTED
        assert "stopped by the controller: one more action differs than may be replaced (1)" in record.reason
    else:
        assert (record.outcome, record.score) == (Outcome.SCORED, 1.0)


def test_no_more_steps_are_undone_than_the_budget_has(tmp_path: Path) -> None:
    record = play_patched(tmp_path, lambda number: DONE, patches=9, undone=1)
    assert [step.action for step in record.steps] == [SHOWN["count"][0], DONE]
    assert (record.outcome, record.score) == (Outcome.SCORED, 0.0)


def test_a_longer_episode_than_the_demonstration_ends(tmp_path: Path) -> None:
    controller = PatchMismatches(demonstrations={"count": SHOWN["count"][:1]})
    play(count_env(), tmp_path, controller, following(lambda seed, number, is_branch: add(number, number)))
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
    assert (row.outcome, row.steps) == (Outcome.BUDGET_EXHAUSTED, 2)
    assert "stopped by the controller: the demonstration ends with step 1" in row.reason


def test_a_task_without_a_demonstration_ends_at_once(tmp_path: Path) -> None:
    play(
        count_env(), tmp_path, PatchMismatches(demonstrations={}), following(lambda seed, number, is_branch: add(1, 1))
    )
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
    assert (row.outcome, row.steps) == (Outcome.BUDGET_EXHAUSTED, 1)
    assert "stopped by the controller: there is no demonstration" in row.reason


def test_an_own_answer_is_kept_only_if_the_choice_says_so(tmp_path: Path) -> None:
    def decide(played: Played) -> Choice:
        return Replace(add(3, 1)) if played.number == 1 else GO_ON

    agents = following(lambda seed, number, is_branch: DONE if number > 1 else add(9, 1))
    play(count_env(), tmp_path, ByHand(decide), agents)
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
        assert (row.score, store.load(row.id).side_answers) == (1.0, ())


def call(**arguments: object) -> Action:
    return Action(text="Let me see.", tool_calls=(ToolCall(id="call_7", name="add", arguments=arguments),))


@pytest.mark.parametrize(
    ("own", "shown", "texts", "same"),
    [
        (call(amount=1, to="a"), call(to="a", amount=1), True, True),
        (call(amount=1), replace(call(amount=1), text="other words"), True, True),
        (call(amount=1), call(amount=2), False, False),
        (call(amount=1), DONE, False, False),
        (DONE, call(amount=1), False, False),
        (Action(text="something else"), DONE, False, True),
        (Action(text="something else"), DONE, True, False),
        (Action(text=" Done\n"), DONE, True, True),
        (Action(tool_calls=(ToolCall(id="1", name="", parse_error="no JSON"),)), DONE, False, False),
    ],
)
def test_actions_are_the_same_if_they_do_the_same(own: Action, shown: Action, texts: bool, same: bool) -> None:
    assert is_same_action(own, shown, texts=texts) is same
