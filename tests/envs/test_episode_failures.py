"""Servers and agents that fail in an episode: what is an observation, what is graded, and what has no score."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from misbehaving_shelf import HASTY, SHELF, TASK, Deaf, call, play, shelf_env

from gymcp.agents.runner.rollout import Job, rollout
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.native.runtime import CALL_LIMIT
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Limits, get_sandbox
from gymcp.outcome import Outcome
from gymcp.types import Action, EpisodeLimits, Observation


def test_a_server_that_dies_is_env_infra_without_a_score() -> None:
    done = play([Action(tool_calls=(call("crash"),))])
    assert (done.trajectory.outcome, done.trajectory.score) == (Outcome.ENV_INFRA, None)
    assert "server 'shelf': tool 'crash': the server ended" in done.trajectory.reason


def test_a_tool_that_never_ends_is_an_observation_and_the_episode_goes_on() -> None:
    actions = [Action(tool_calls=(call("hang"),)), Action(tool_calls=(call("look"),)), Action(), Action()]
    done = play(actions, shelf_env(limits=HASTY))
    hung, looked = done.trajectory.steps[0].results[0], done.trajectory.steps[1].results[0]
    assert hung.is_error
    # the server's own words, or, where it was late with them, the harness's
    assert hung.content in [f"tool 'hang' did not answer within {seconds} s, {CALL_LIMIT}" for seconds in ("1.8", "2")]
    assert json.loads(looked.content) == {"a": 1, "hung": 1}
    assert (done.trajectory.outcome, done.trajectory.score) == (Outcome.SCORED, 0.0)


@pytest.mark.parametrize(
    ("tool", "env", "said"),
    [
        ("block", shelf_env(limits=HASTY), "tool 'block': did not end within 2 s"),
        ("hoard", SHELF, "tool 'hoard': memory: the process tree used more"),
    ],
    ids=["block", "hoard"],
)
def test_a_call_that_exhausts_the_server_is_graded(tool: str, env: LoadedEnv, said: str) -> None:
    put = call("put", box="a", count=1)
    done = play([Action(tool_calls=(put,)), Action(tool_calls=(call(tool, 2), call("look", 3))), Action()], env)
    assert (done.trajectory.outcome, done.trajectory.score) == (Outcome.BUDGET_EXHAUSTED, 0.0)
    assert f"out of budget (server 'shelf': {said}" in done.trajectory.reason
    assert [(r.call_id, r.is_error) for r in done.trajectory.steps[1].results] == [("call_2", True)]
    assert done.states[done.trajectory.final_state or ""] == {"boxes": {"a": 2}}


def test_a_server_that_hangs_and_declares_nothing_is_a_timeout_without_a_score() -> None:
    opaque = replace(native_server("deaf", Deaf), state="opaque")
    done = play([Action(tool_calls=(call("hang"),))], replace(shelf_env(limits=HASTY), servers=(opaque,)))
    assert (done.trajectory.outcome, done.trajectory.score) == (Outcome.TIMEOUT, None)
    assert "server 'deaf': tool 'hang': hung: no answer within 2 s, the limit of a call" in done.trajectory.reason
    assert "to raise it: EpisodeLimits(call_timeout_s=...) of the environment" in done.trajectory.reason


def test_slow_calls_exhaust_the_tools_budget() -> None:
    slow = shelf_env(limits=EpisodeLimits(call_timeout_s=0.2, tool_s=0.3))
    done = play([Action(tool_calls=tuple(call("hang", number) for number in range(3)))], slow)
    assert (done.trajectory.outcome, done.trajectory.score) == (Outcome.BUDGET_EXHAUSTED, 0.0)
    assert "0.3 s of the tools' time" in done.trajectory.reason
    assert done.trajectory.steps[0].results[2].content == "not run: the tools have taken 0.3 s together"


@pytest.mark.parametrize("line", ["this is not JSON", "[1, 2]", '{"jsonrpc": "2.0"}', "[" * 5000])
def test_a_server_that_breaks_the_wire_is_env_infra(line: str) -> None:
    code = f"import time; print({line!r}, flush=True); time.sleep(60)"
    broken = replace(SHELF.servers[0], argv=("python3", "-c", code))
    done = play([], replace(SHELF, servers=(broken,)))
    assert done.trajectory.outcome is Outcome.ENV_INFRA
    assert "not a JSON-RPC message" in done.trajectory.reason


def test_a_server_that_does_not_start_is_env_infra() -> None:
    broken = replace(SHELF.servers[0], argv=("python3", "-c", "import sys; sys.exit('no such luck')"))
    done = play([], replace(SHELF, servers=(broken,)))
    assert done.trajectory.outcome is Outcome.ENV_INFRA
    assert "no such luck" in done.trajectory.reason


def test_an_answer_longer_than_the_limit_is_an_observation() -> None:
    tight = replace(SHELF.servers[0], limits=Limits(line_bytes=100_000))
    done = play([Action(tool_calls=(call("flood"),))], replace(SHELF, servers=(tight,)))
    assert done.trajectory.outcome is Outcome.SCORED
    (result,) = done.trajectory.steps[0].results
    assert result.is_error
    assert "where at most 100000 are read" in result.content


def test_a_line_longer_than_the_limit_is_env_infra() -> None:
    code = "import time; print('x' * 200_000, flush=True); time.sleep(60)"
    tight = replace(SHELF.servers[0], argv=("python3", "-c", code), limits=Limits(line_bytes=100_000))
    done = play([], replace(SHELF, servers=(tight,)))
    assert done.trajectory.outcome is Outcome.ENV_INFRA
    assert "longer than any message may be" in done.trajectory.reason


@pytest.mark.parametrize(
    ("limits", "actions", "said"),
    [
        (EpisodeLimits(steps=2), [Action(tool_calls=(call("look"),))] * 5, "2 steps"),
        (EpisodeLimits(steps_per_turn=1), [Action(tool_calls=(call("look"),))] * 5, "1 steps in one user turn"),
    ],
)
def test_an_episode_out_of_budget_is_graded_as_it_stands(
    limits: EpisodeLimits, actions: list[Action], said: str
) -> None:
    done = play(actions, shelf_env(limits=limits))
    assert (done.trajectory.outcome, done.trajectory.score) == (Outcome.BUDGET_EXHAUSTED, 0.0)
    assert said in done.trajectory.reason


def test_an_agent_of_the_user_that_raises_has_a_score_of_0() -> None:
    class Broken:
        async def act(self, observation: Observation) -> Action:
            raise KeyError("oh")

    job = Job(task=TASK, trial=0, seed=0)
    done = asyncio.run(rollout(SHELF, get_sandbox("bwrap"), lambda task, seed: Broken(), job, timeout_s=60))
    assert (done.trajectory.outcome, done.trajectory.score) == (Outcome.AGENT_ERROR, 0.0)
    assert "test_episode_failures.py:" in done.trajectory.reason
    assert "KeyError" in done.trajectory.reason
