"""The synchronous environment, with its server in the real sandbox."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

from gymcp.envs import McpEnv
from gymcp.errors import ConfigError, UsageError
from gymcp.types import Action, ToolCall

BANK = Path(__file__).parents[2] / "examples" / "bank.py"
PAY = {"text": "", "tool_calls": ({"name": "transfer", "arguments": '{"source":"ann","target":"bob","amount":30}'},)}
SPEAK = {"text": "Done.", "tool_calls": ()}


@pytest.fixture
def bank() -> Iterator[McpEnv]:
    env = McpEnv(BANK, render_mode="ansi")
    yield env
    env.close()


def test_the_gymnasium_checker_finds_no_fault(bank: McpEnv) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on infinite spaces, not failures
        check_env(bank, skip_render_check=True)


def test_the_last_reward_is_the_score(bank: McpEnv) -> None:
    observation, info = bank.reset(seed=0, options={"task": "pay_back_30"})
    assert observation["messages"][0]["content"] == "I am Ann. Pay Bob the 30 euros that I owe him."
    assert info["task"] == "pay_back_30"
    _, reward, terminated, truncated, _ = bank.step(PAY)
    assert (reward, terminated, truncated) == (0.0, False, False)
    _, reward, terminated, truncated, _ = bank.step(SPEAK)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert bank.trajectory is not None
    assert bank.trajectory.score == 1.0


def test_actions_can_be_records(bank: McpEnv) -> None:
    bank.reset(seed=0, options={"task": "pay_back_5"})
    call = ToolCall(id="c", name="balance", arguments={"owner": "bob"})
    observation, *_ = bank.step(Action(tool_calls=(call,)))
    assert observation["messages"][0]["content"] == "20"
    assert bank.observation_space.contains(observation)
    assert bank.render() == "tool: 20"


def test_the_same_seed_draws_the_same_task_and_world(bank: McpEnv) -> None:
    first, second = bank.reset(seed=7), bank.reset(seed=7)
    assert first == second


def test_two_environments_run_side_by_side_in_a_vector_environment() -> None:
    both = SyncVectorEnv([lambda: McpEnv(BANK, tasks="pay_back_30") for _ in range(2)])
    both.reset(seed=0)
    both.step({"text": ("", "Done."), "tool_calls": (PAY["tool_calls"], ())})
    _, rewards, terminated, *_ = both.step({"text": ("Done.", ""), "tool_calls": ((), ())})
    both.close()
    assert (rewards[0], terminated[0]) == (1.0, True)


def test_gymnasium_make_finds_the_catalog() -> None:
    assert "gymcp/bfcl-v0" in gymnasium.registry


def test_an_unknown_environment_or_task_is_named() -> None:
    with pytest.raises(ConfigError, match="no task matches 'nope"):
        McpEnv(BANK, tasks="nope*")
    with pytest.raises(ConfigError, match="no sandbox 'jail'; have bwrap, docker, none"):
        McpEnv(BANK, sandbox="jail")
    with pytest.raises(
        ConfigError, match="no environment 'nope'; have agentdojo, backoffice, backoffice_asking, backoffice_choosing,"
    ):
        McpEnv("nope")


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ({"text": "x"}, "action lacks tool_calls; it must have text and tool_calls"),
        ({}, "action lacks text and tool_calls"),
        (None, "action must be a mapping with text and tool_calls, not NoneType"),
        ({"text": "", "tool_calls": ({"name": "transfer"},)}, "action: a tool call lacks arguments"),
    ],
)
def test_an_action_of_another_shape_is_refused_and_the_episode_goes_on(bank: McpEnv, action: Any, said: str) -> None:
    bank.reset(seed=0)
    with pytest.raises(ConfigError, match=said):
        bank.step(action)
    bank.step(PAY)


def test_a_step_without_an_episode_raises_a_usage_error_that_is_also_gymnasium_s(bank: McpEnv) -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match="before reset") as before:
        bank.step(SPEAK)
    bank.reset(seed=0)
    bank.step(SPEAK)
    with pytest.raises(gymnasium.error.ResetNeeded, match="has ended; reset first") as after:
        bank.step(SPEAK)
    bank.close()
    closed = []
    for word in (lambda: bank.step(SPEAK), lambda: bank.reset(seed=0), bank.snapshot):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="environment 'bank': it is closed") as caught:
            word()
        closed.append(caught.value)
    assert all(isinstance(error, UsageError) for error in (before.value, after.value, *closed))
    bank.close()
