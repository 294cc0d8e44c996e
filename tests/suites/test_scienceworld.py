"""ScienceWorld's simulator in the sandbox: gates, state keys, records. The first session needs a package index."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from equipment import usable

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.catalog.scienceworld import ENV
from gymcp.envs.spec import load_env
from gymcp.envs.suites.scienceworld import make_tasks, servers
from gymcp.envs.suites.scienceworld.installation import records_fingerprint
from gymcp.envs.suites.scienceworld.java import JavaRuntime
from gymcp.envs.suites.scienceworld.records import PRECOMPUTED, name_record, play_gold
from gymcp.envs.suites.upstream.precomputed import read_precomputed
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.types import GoldTurn, Suite, Task, ToolCall, Trajectory

FAMILY = "power-component"
EXPECTED = {"null": (0.0, 0.0), "mutated": (0.0, 0.7)}
"""Agent -> (score, progress). The oracle plays in tests/envs/test_clean_resets.py."""
WALK = (
    *("open door to hallway", "connect battery anode to red wire terminal 1"),
    *("close door to hallway", "wait1", "open door to hallway"),  # a longer way to the same world
)


@pytest.fixture(scope="module")
def task(java: JavaRuntime) -> Task:
    usable("bwrap")
    (task,) = make_tasks("test", families=[FAMILY], count=1)
    return task


def play(agent: str, task: Task) -> Trajectory:
    """The agent's episode of the task."""
    done: list[Trajectory] = []

    def take(rollout: Rollout, last: bool) -> None:
        done.append(rollout.trajectory)

    async def run() -> None:
        one_by_one = tuple(replace(server, warm_pool_size=0) for server in servers())
        env = load_env(
            replace(ENV, servers=one_by_one, suite=Suite(name="scienceworld", version="test", tasks=(task,)))
        )
        async with open_warm_sandbox(get_sandbox("bwrap")) as warm:
            await run_jobs(env, warm, SCRIPTED[agent], [Job(task=task, trial=0, seed=0)], Schedule(concurrency=1), take)

    asyncio.run(run())
    return done[0]


@pytest.mark.parametrize("agent", EXPECTED)
def test_scripted_agents_have_the_expected_scores_in_the_sandbox(agent: str, task: Task) -> None:
    record = play(agent, task)
    assert (record.score, round(record.components["progress"], 2)) == EXPECTED[agent], record.reason


def test_two_ways_to_a_world_give_one_key_and_other_worlds_others(task: Task) -> None:
    calls = [ToolCall(id=f"call_{number}", name="act", arguments={"action": each}) for number, each in enumerate(WALK)]
    record = play("oracle", replace(task, gold=(GoldTurn(calls=tuple(calls), final_text="done"),)))
    door, both, wire, later, again = (step.world_key for step in record.steps[: len(WALK)])
    assert again == both
    assert later == wire, "time alone is no part of a world"
    assert len({door, both, wire}) == 3


def test_the_simulator_plays_gold_as_it_is_in_the_records_that_gymcp_brings(task: Task) -> None:
    """Checked for two records; `benchmarks/precomputed.py` plays all of them every night."""
    variations = [(FAMILY, task.initial_state["variation"]), ("chemistry-mix-paint-secondary-color", 27)]
    brought = read_precomputed(PRECOMPUTED, records_fingerprint())
    assert play_gold(variations) == [brought[name_record(each)] for each in variations]
