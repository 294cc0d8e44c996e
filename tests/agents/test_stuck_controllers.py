"""Controllers that never answer, leave, or plan nonsense: their own episode has no score, all others go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tree_play import ByHand, add, count_env, following, play

from gymcp.agents.runner.trees import ask_controller
from gymcp.agents.runner.trees.controller import GO_ON, Branch, Choice, Played, Start, TreeBudget
from gymcp.errors import ConfigError
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore
from gymcp.types import Action

DONE = Action(text="Counted.")
THREE = following(lambda seed, number, is_branch: add(1, number) if number < 4 else DONE)
"""Agents that solve the task in four steps."""


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask_controller, "ANSWER_S", 0.2)
    monkeypatch.setattr(ask_controller, "MAX_PLANNED", 1000)


def loop_for_ever() -> Choice:
    while True:
        pass


def swallow_for_ever() -> Choice:
    while True:
        try:
            time.sleep(60)
        except Exception:
            continue


def leave() -> Choice:
    sys.exit("enough")


async def answer_later() -> Choice:
    return GO_ON


def read_outcomes(folder: Path) -> dict[tuple[int, str], tuple[Outcome, str]]:
    """(trial, branch) -> outcome and reason."""
    with TrajectoryStore.open(folder) as store:
        rows = [("", row) for row in store.summaries()] + [(row.branch, row.episode) for row in store.branches()]
    return {(row.trial, branch): (row.outcome, row.reason) for branch, row in rows}


@pytest.mark.parametrize(
    ("fail", "says"),
    [
        (loop_for_ever, "controller ByHand: took more than 0.2 s after step 2; all episodes stand still as long"),
        (swallow_for_ever, "controller ByHand: took more than 0.2 s after step 2"),
        (leave, "SystemExit: enough after step 2"),
        (answer_later, "controller ByHand: gave a coroutine after step 2; make the method a plain function"),
    ],
)
def test_a_controller_that_fails_in_one_episode_ends_that_one_alone(
    fail: Callable[[], Any], says: str, tmp_path: Path
) -> None:
    """It fails in the first branch of the first tree: its parent, its sibling and the other tree have scores."""

    def decide(played: Played) -> Choice:
        if not played.branch and played.number == 1:
            return Branch(3)
        if (played.trial, played.branch, played.number) == (0, "1.1", 2):
            return fail()  # type: ignore[no-any-return]
        return GO_ON

    play(count_env(), tmp_path, ByHand(decide), THREE, TreeBudget(episodes=3), trials=2)
    found = read_outcomes(tmp_path)
    outcome, reason = found.pop((0, "1.1"))
    assert outcome is Outcome.ENV_INFRA
    assert says in reason
    assert set(found) == {(0, ""), (0, "1.2"), (1, ""), (1, "1.1"), (1, "1.2")}
    assert {outcome for outcome, _ in found.values()} == {Outcome.SCORED}


def test_a_controller_that_never_answers_in_the_first_episode_loses_its_tree_alone(tmp_path: Path) -> None:
    def decide(played: Played) -> Choice:
        return loop_for_ever() if (played.trial, played.number) == (0, 1) else GO_ON

    play(count_env(), tmp_path, ByHand(decide), THREE, trials=3)
    outcomes = {trial: outcome for (trial, _), (outcome, _) in read_outcomes(tmp_path).items()}
    assert outcomes == {0: Outcome.ENV_INFRA, 1: Outcome.SCORED, 2: Outcome.SCORED}


def test_a_controller_that_never_answers_at_the_end_changes_no_record(tmp_path: Path) -> None:
    class Late(ByHand):
        def at_end(self, played: Played) -> Choice:
            return loop_for_ever()

    play(count_env(), tmp_path, Late(lambda played: GO_ON), THREE)
    assert read_outcomes(tmp_path) == {(0, ""): (Outcome.SCORED, "the final state is the wanted one")}


def without_end() -> Iterator[Start]:
    while True:
        yield Start(task="count", trees=0)


def plan_for_ever() -> Iterable[Start]:
    while True:
        pass


def plan_and_raise() -> Iterable[Start]:
    raise KeyError("count")


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (plan_for_ever, "controller Planning: took more than 0.2 s when it planned"),
        (without_end, "controller Planning: plans no episode of the run's 1 tasks"),
        (plan_and_raise, "controller Planning: raised .*: KeyError: 'count' when it planned"),
        (lambda: 7, "controller Planning: raised .*TypeError: .* when it planned"),
        (lambda: ["count"], "controller Planning: planned a str, not a gymcp.agents.Start"),
        (lambda: [Start(task="count", trees="2")],  # type: ignore[arg-type]
          "controller Planning: planned .* not a gymcp.agents.Start"),
        (lambda: [Start(task="count", trees=10**12)], "controller Planning: plans more than 1,000 episodes"),
    ],
)  # fmt: skip
def test_a_plan_that_fails_is_one_error_before_anything_is_played(
    plan: Callable[[], Any], says: str, tmp_path: Path
) -> None:
    class Planning(ByHand):
        def plan(self, tasks: object, budget: TreeBudget) -> Any:
            return plan()

    with pytest.raises(ConfigError, match=says):
        play(count_env(), tmp_path, Planning(lambda played: GO_ON), THREE)
    assert read_outcomes(tmp_path) == {}
