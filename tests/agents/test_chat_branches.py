"""Branches of agents over chat endpoints: they have the budget that is left, and read what their parent read."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server, says

from gymcp.agents.policies.models import ChatModel
from gymcp.agents.policies.openai.client import Endpoint, Retries, open_endpoint
from gymcp.agents.policies.prices import Price
from gymcp.agents.prompts.context import DROPPED
from gymcp.agents.runner.run import Plan, run_plan
from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.runner.trees.branch_steps import BranchSteps
from gymcp.agents.runner.trees.controller import TreeBudget
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.errors import PolicyInfraError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.store import TrajectoryStore
from gymcp.types import EpisodeLimits, Trajectory

BANK = load_env(load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py")))
AFTER_FOURTH = BranchSteps(ways=2, steps=frozenset({4}))
PRICE = Price(prompt=0, completion=1_000_000)  # one of money for each token

Body = dict[str, Any]


FITS = 2600
"""Characters of the messages that fit in the context."""


def look_up(body: Body, fits: int) -> Reply:
    """A call of a tool with a long result, in five tokens; 400 for more than fits in the context."""
    if len(json.dumps(body["messages"])) > fits:
        return Reply(status=400, body=b"This model's maximum context length is 500 tokens")
    return says("", ("balance", json.dumps({"owner": "n" * 300})))


def play_tree(
    folder: Path, settings: ReactSettings, steps: int, fits: int = FITS
) -> tuple[Trajectory, Trajectory, list[Body]]:
    """The first episode of so many steps, its branch after the fourth, and the requests of both."""
    env = replace(
        BANK,
        suite=replace(BANK.suite, tasks=BANK.suite.tasks[:1]),
        spec=replace(BANK.spec, limits=EpisodeLimits(steps=steps)),
    )
    schedule = Schedule(max_attempts=1, controller=AFTER_FOURTH, tree=TreeBudget(episodes=2))
    folder.mkdir()
    with asyncio.Runner() as runner, chat_server(lambda number, body: look_up(body, fits)) as server:
        to = Endpoint(url=server.url, model="m", price=PRICE, retries=Retries(attempts=2, first_pause_s=0.01))
        opened = open_endpoint(to)
        policy = runner.run(opened.__aenter__())
        with TrajectoryStore.open(folder, write=True) as store:
            make = react(ChatModel(name="m", policy=policy), settings)
            run_plan(env, get_sandbox("bwrap"), Plan(agent="react"), store, schedule, make_agent=make, runner=runner)
            (first,), (branch,) = store.summaries(), store.branches()
            found = store.load(first.id), store.load(branch.episode.id)
        runner.run(opened.__aexit__(None, None, None))
    return *found, server.requests


@pytest.mark.parametrize(("budget", "why"), [(Budget(tokens=28), "28 tokens"), (Budget(cost=28.0), "28 of money")])
def test_a_branch_has_the_tokens_and_the_money_that_its_shared_steps_left(
    budget: Budget, why: str, tmp_path: Path
) -> None:
    """Four shared answers take 20 of 28, so two of five each are left: as many as the first episode had."""
    first, branch, _ = play_tree(tmp_path / "run", ReactSettings(budget=budget), steps=9, fits=20 * FITS)
    for path in (first, branch):
        assert why in path.reason
        assert len(path.steps) == 6
    assert [step.model_usage and step.model_usage.completion_tokens for step in branch.steps] == [5] * 6


def test_a_branch_reads_the_messages_that_its_parent_read(tmp_path: Path) -> None:
    """Old results were dropped in the fourth answer; the fifth ones of both episodes follow the same messages."""
    first, branch, requests = play_tree(tmp_path / "run", ReactSettings(overflow="drop"), steps=5)
    assert [step.context for step in first.steps] == [step.context for step in branch.steps]
    assert first.steps[3].context
    asked = [body["messages"] for body in requests if len(json.dumps(body["messages"])) <= FITS]
    assert len(asked) == 5 + 1
    assert DROPPED in json.dumps(asked[4])
    assert asked[4] == asked[5]


def test_dropped_results_that_the_record_lacks_are_one_error(tmp_path: Path) -> None:
    first, _, _ = play_tree(tmp_path / "run", ReactSettings(overflow="drop"), steps=5)
    agent: Any = react(ChatModel(name="m", policy=None), ReactSettings())(BANK.suite.tasks[0], 1)  # type: ignore[arg-type]
    with pytest.raises(PolicyInfraError, match=r"model 'm': the prompt of answer 2 cannot be rebuilt from the record"):
        agent.resume([first.steps[0], replace(first.steps[1], context=9)])
