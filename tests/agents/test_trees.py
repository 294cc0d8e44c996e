"""Trees of episodes: branches on copies of live worlds, agents that go on from the record, runs that are resumed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from generate_policy import load
from spelled_policy import RandomPayer
from tree_play import ByHand, Following, add, count_env, following, play, read_trees, replay

from gymcp.agents.policies.metering import meter_model
from gymcp.agents.policies.models import Model, TokenModel
from gymcp.agents.policies.prices import Price
from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.agents.runner.run import RunEnd
from gymcp.agents.runner.trees.branch_steps import BranchSteps
from gymcp.agents.runner.trees.controller import (
    GO_ON,
    Branch,
    Choice,
    Played,
    Replace,
    Retry,
    Stop,
    TreeBudget,
)
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.strategies.guarded_agent import GuardedAgent
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.outcome import Outcome
from gymcp.scratch import scratch_folder
from gymcp.store import TrajectoryStore
from gymcp.types import Action, Decision, Observation, Sampled, Sampling, Task

BANK_FILE = str(Path(__file__).parents[2] / "examples" / "bank.py")
BANK = load_env(load_spec(BANK_FILE))
SIX = TreeBudget(episodes=6)
EVERY_STEP = BranchSteps(ways=2, depth=2)
DONE = Action(text="Counted.")


@pytest.mark.parametrize(
    ("name", "tasks"),
    [(BANK_FILE, 3), ("backoffice", 3), ("rounds", 8), ("looks", 8), ("workbench", 1)],
    ids=lambda value: Path(str(value)).stem,
)
def test_the_world_of_a_branch_equals_the_replayed_one(name: str, tasks: int, tmp_path: Path) -> None:
    env = load_env(load_spec(name))
    assert play(env, tmp_path, EVERY_STEP, budget=SIX, limit=tasks, seed=4) is RunEnd.FINISHED
    with TrajectoryStore.open(tmp_path) as store:
        rows = store.branches()
        paths = [store.load(row.episode.id) for row in rows]
    assert len(rows) >= 3
    assert {row.episode.outcome for row in rows} <= {Outcome.SCORED, Outcome.BUDGET_EXHAUSTED}
    again = asyncio.run(replay(env, paths))
    assert [[step.world_key for step in steps] for steps in again] == [
        [step.world_key for step in path.steps] for path in paths
    ]


def test_branches_share_the_steps_of_their_parent_and_count_only_their_own(tmp_path: Path) -> None:
    play(BANK, tmp_path, EVERY_STEP, budget=SIX, trials=2)
    with TrajectoryStore.open(tmp_path) as store:
        firsts, rows = store.summaries(), store.branches()
        for row in rows:
            path, parent = store.load(row.episode.id), store.load(row.episode.parent or "")
            assert path.steps[: row.shared] == parent.steps[: row.shared]
            own = path.steps[row.shared :]
            assert row.episode.steps == len(own)
            assert row.episode.usage.tool_calls == sum(len(step.results) for step in own)
            assert row.branch.rpartition("/")[2].partition(".")[0] == str(row.shared)
            ids = [call.id for step in path.steps for call in step.action.tool_calls]
            assert len(ids) == len(set(ids))
    assert len(firsts) == 6
    assert any("/" in row.branch for row in rows)


def test_a_tree_is_the_same_tree_again_and_another_with_another_seed(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        play(BANK, tmp_path / name, EVERY_STEP, budget=SIX, limit=2, seed=seed)
    assert read_trees(tmp_path / "one") == read_trees(tmp_path / "again")
    assert read_trees(tmp_path / "one") != read_trees(tmp_path / "other")


def test_a_model_goes_on_from_the_tokens_as_they_were_drawn(tmp_path: Path) -> None:
    tiny = load(make_tiny_model(tmp_path / "tiny", "qwen", size=TinySize(hidden=64, layers=2)))
    agents = react(replace(tiny, policy=RandomPayer(tiny)), ReactSettings())
    play(BANK, tmp_path / "run", EVERY_STEP, agents, SIX)
    with TrajectoryStore.open(tmp_path / "run") as store:
        paths = [store.load(row.episode.id) for row in store.branches()]
        read = {row.episode.id: row for row in store.branches()}
    assert len(paths) >= 3
    for path in paths:
        samples = [step.sampled for step in path.steps if step.sampled is not None]
        assert len(samples) == len(path.steps)
        for before, after in pairwise(samples):
            context = before.prompt_ids + before.ids
            assert after.prompt_ids[: len(context)] == context
        own = samples[read[path.id].shared :]
        assert path.usage.completion_tokens == sum(len(sample.ids) for sample in own)
    assert len({path.steps[read[path.id].shared].sampled for path in paths}) > 1


class Rethinking(Following):
    """An agent of the user over a token model: it asks twice before each step, and takes the second answer."""

    def __init__(self, model: Model) -> None:
        super().__init__(lambda seed, number, is_branch: add(1, number), seed=0)
        self._policy: Any = model.policy

    async def act(self, observation: Observation) -> Any:
        _, answer = [await self._policy.sample((1, 2, 3), Sampling()) for _ in range(2)]
        return Decision(action=await super().act(observation), sampled=answer)


class TwoTokens:
    """A policy that draws two tokens."""

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        return Sampled(prompt_ids=tuple(prompt_ids), ids=(7, 8), logprobs=(0.0, 0.0), versions=(("0", 0, 2),))


@pytest.mark.parametrize(("budget", "why"), [(Budget(tokens=24), "24 tokens"), (Budget(cost=24.0), "24 of money")])
def test_a_branch_of_ones_own_agent_has_the_tokens_and_the_money_that_its_shared_steps_left(
    budget: Budget, why: str, tmp_path: Path
) -> None:
    """Each step takes four tokens, of which its record has two, and one of money for each."""
    price = Price(prompt=0, completion=1_000_000)
    unused: Any = None
    model = TokenModel(name="m", policy=TwoTokens(), renderer=unused, parse_calls=unused, context=99, price=price)
    controller = BranchSteps(ways=2, steps=frozenset({4}))

    def make_agent(task: Task, seed: int) -> GuardedAgent:
        return GuardedAgent(lambda: Rethinking(meter_model(model)), budget, set())

    play(count_env(), tmp_path / "run", controller, make_agent, TreeBudget(episodes=2))
    with TrajectoryStore.open(tmp_path / "run") as store:
        paths = [*store.iter_trajectories(), *(store.load(row.episode.id) for row in store.branches())]
    assert [(len(path.steps), why in path.reason) for path in paths] == [(6, True)] * 2
    assert [path.usage.cost for path in paths] == [24.0, 8.0]


KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_trees import BANK, EVERY_STEP, SIX
from tree_play import play

class Dying(type(EVERY_STEP)):
    asked = 0
    def after(self, played):
        Dying.asked += 1
        if Dying.asked == 12:
            print("dying", flush=True)
            os.kill(os.getpid(), 9)
        return super().after(played)

play(BANK, Path({folder!r}), Dying(ways=2, depth=2), budget=SIX)
"""


def test_a_killed_and_resumed_run_has_the_same_trees(tmp_path: Path) -> None:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    script = KILLED.format(paths=paths, folder=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "dying\n"), done.stderr
    before = read_trees(tmp_path / "run")
    play(BANK, tmp_path / "run", EVERY_STEP, budget=SIX)
    play(BANK, tmp_path / "whole", EVERY_STEP, budget=SIX)
    whole = read_trees(tmp_path / "whole")
    assert read_trees(tmp_path / "run") == whole
    assert before.items() <= whole.items()
    assert len(before) < len(whole)


def test_an_interrupted_tree_is_played_again_as_a_whole(tmp_path: Path) -> None:
    def interrupt(played: Played) -> Choice:
        if played.branch:
            os.kill(os.getpid(), signal.SIGINT)
        return Branch(2) if played.number == 1 else GO_ON

    agents = following(lambda seed, number, is_branch: add(number, number) if number < 3 else DONE)
    env = count_env()
    assert play(env, tmp_path, ByHand(interrupt), agents) is RunEnd.INTERRUPTED
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
        assert (row.outcome, row.score, row.reason) == (
            Outcome.CANCELLED,
            None,
            "interrupted before its tree was complete",
        )
        assert store.branches() == []
    assert play(env, tmp_path, BranchSteps(steps=frozenset({1})), agents) is RunEnd.FINISHED
    assert {place: value[1] for place, value in read_trees(tmp_path).items()} == {
        ("count", 0, ""): 1.0,
        ("count", 0, "1.1"): 1.0,
    }


def test_a_step_is_undone_and_asked_for_again(tmp_path: Path) -> None:
    retried: list[int] = []

    def decide(played: Played) -> Choice:
        if played.step.results[0].content != "3" and len(retried) < 1:
            retried.append(played.number)
            return Retry()
        return GO_ON

    def act(seed: int, number: int, is_branch: bool) -> Action:
        return add(3 if is_branch else 50, number) if number == 1 else DONE

    play(count_env(), tmp_path, ByHand(decide), following(act))
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
        record = store.load(row.id)
    assert (retried, row.score, row.steps) == ([1], 1.0, 2)
    assert [result.content for step in record.steps for result in step.results] == ["3"]


def test_a_step_is_replaced_by_another(tmp_path: Path) -> None:
    def decide(played: Played) -> Choice:
        return Replace(add(2, 100)) if played.number == 2 else GO_ON

    def act(seed: int, number: int, is_branch: bool) -> Action:
        return add(1 if number == 1 else 50, number) if number < 3 else DONE

    play(count_env(), tmp_path, ByHand(decide), following(act))
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
        record = store.load(row.id)
    assert row.score == 1.0
    assert [call.arguments for step in record.steps for call in step.action.tool_calls] == [
        {"amount": 1},
        {"amount": 2},
    ]


def test_a_stopped_episode_is_graded_as_it_stands(tmp_path: Path) -> None:
    agents = following(lambda seed, number, is_branch: add(3, number))
    play(count_env(), tmp_path, ByHand(lambda played: Stop("enough")), agents)
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
    assert (row.outcome, row.score, row.steps) == (Outcome.BUDGET_EXHAUSTED, 1.0, 1)
    assert "stopped by the controller: enough" in row.reason


def test_a_controller_sees_the_place_the_scores_and_the_use_of_its_tree(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int, int, tuple[float | None, ...], float | None]] = []

    def decide(played: Played) -> Choice:
        spent = played.spent
        seen.append((played.branch, played.depth, played.number, spent.calls, played.scores, played.surprise))
        return Branch(3) if played.number == 1 else GO_ON

    agents = following(lambda seed, number, is_branch: add(number, number) if number < 3 else DONE)
    play(count_env(), tmp_path, ByHand(decide), agents, TreeBudget(episodes=3))
    assert seen == [
        ("", 0, 1, 1, (), None),
        ("", 0, 2, 2, (), None),
        ("1.1", 1, 2, 3, (1.0,), None),
        ("1.2", 1, 2, 4, (1.0, 1.0), None),
    ]


@pytest.mark.parametrize(("limits", "episodes"), [({"calls": 2}, 2), ({"episodes": 3}, 3)])
def test_no_branch_begins_beyond_the_budget(limits: dict[str, int], episodes: int, tmp_path: Path) -> None:
    agents = following(lambda seed, number, is_branch: add(number, number) if number < 4 else DONE)
    play(count_env(), tmp_path, BranchSteps(), agents, TreeBudget(**limits))
    assert len(read_trees(tmp_path)) == episodes


def test_trees_leave_no_process_descriptor_or_folder(tmp_path: Path) -> None:
    def list_leftovers() -> set[str]:
        return {*os.listdir("/proc/self/fd"), *(path.name for path in scratch_folder().iterdir())}  # noqa: PTH208

    agents = following(lambda seed, number, is_branch: add(number, number) if number < 3 else DONE)
    play(count_env(), tmp_path / "first", EVERY_STEP, agents, SIX)  # caches of the process are filled
    before = list_leftovers()
    play(count_env(), tmp_path / "second", EVERY_STEP, agents, SIX)
    assert list_leftovers() <= before
