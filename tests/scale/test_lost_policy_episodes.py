"""Episodes whose model is being opened again while their own time runs out: never graded as if the agent had failed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gymcp.agents.runner.rollout import Job, rollout
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.errors import NodeLost
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import Agent
from gymcp.scale import reopened_policy
from gymcp.scale.questions import AskedPolicy
from gymcp.scale.reopened_policy import PolicyNode, ReopenedPolicy
from gymcp.types import Action, Observation, Sampled, Sampling, Task, Trajectory

BANK = load_env(load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py")))
EPISODE_S = 20.0


class DeadNode:
    name = "a"

    async def sample(self, prompt_ids: Any, sampling: Sampling) -> Sampled:
        raise NodeLost("its worker has died")

    async def ping(self, timeout_s: float) -> None:
        pass

    async def close(self) -> None:
        pass

    def end(self) -> None:
        pass


class SamplingAgent:
    def __init__(self, policy: AskedPolicy) -> None:
        self._policy = policy

    async def act(self, observation: Observation) -> Action:
        await self._policy.sample((1,), Sampling())
        return Action(text="Done.")


async def play_on_lost_policy() -> Trajectory:
    """An episode of `EPISODE_S` on a policy of which an answer may take an hour, and which never opens again."""
    nodes: list[PolicyNode] = [DeadNode()]

    async def open_node() -> PolicyNode:
        if not nodes:
            await asyncio.Event().wait()
        return nodes.pop()

    policy = ReopenedPolicy("policy 'tiny'", open_node, 3600.0)
    await policy.open()

    async def answer(question: Any) -> Sampled:
        return await policy.sample(question.prompt_ids, question.sampling, question.wait_s)

    def make(task: Task, seed: int) -> Agent:
        return SamplingAgent(AskedPolicy(answer))

    job = Job(task=BANK.suite.tasks[0], trial=0, seed=1)
    played = await rollout(BANK, get_sandbox("bwrap"), make, job, timeout_s=120, agent_s=EPISODE_S)
    return played.trajectory


def test_an_episode_near_its_end_has_no_score_while_its_policy_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reopened_policy, "WAIT_SHARE", 0.02)  # 2 % of an hour is more than the episode has
    found = asyncio.run(play_on_lost_policy())
    assert (found.outcome, found.score) == (Outcome.POLICY_INFRA, None)
    assert found.reason == "policy 'tiny': its node is lost, and the model is still being opened again"
