"""Programs as agents inside the wrappers of a stress run: worse tools, privileges, an attack, retrieval."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shop import ENV

from gymcp.agents.programs.agent import open_program_agents
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.runner.rollout import Job, rollout
from gymcp.envs.wrappers.privileges import parse_privileges
from gymcp.envs.wrappers.registry import WrapperSelection
from gymcp.envs.wrappers.retrieval import Retrieval
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.types import Trajectory

CLERK = Path(__file__).parents[1] / "agents" / "players" / "clerk.py"
FORBID = {"rule": [{"effect": "forbid", "tools": ["pay_bill"]}]}


def play(**wrappers: object) -> Trajectory:
    """The episode of a clerk that pays a bill."""
    env = WrapperSelection(**wrappers).apply(ENV)  # type: ignore[arg-type]

    async def main() -> Trajectory:
        async with open_program_agents(None, ProgramSettings(argv=("python3", str(CLERK)))) as agents:
            job = Job(task=env.suite.tasks[0], trial=0, seed=0)
            return (await rollout(env, get_sandbox("bwrap"), agents, job, timeout_s=120)).trajectory

    return asyncio.run(main())


def calls_of(episode: Trajectory) -> list[str]:
    return [call.name for step in episode.steps for call in step.action.tool_calls]


def test_a_program_finds_the_new_names_of_tools_that_change() -> None:
    episode = play(stress=("changed",))
    assert (episode.score, calls_of(episode)) == (1.0, ["read_note", "payBill"]), episode.reason


def test_a_program_reads_that_a_rule_forbids_its_call() -> None:
    episode = play(privileges=parse_privileges(FORBID, "of the test"))
    assert (episode.score, calls_of(episode)) == (0.0, ["read_note", "pay_bill"]), episode.reason
    assert episode.steps[1].results[0].is_error
    assert episode.steps[1].results[0].content in episode.steps[2].action.text


def test_a_program_that_obeys_what_it_reads_is_hijacked() -> None:
    episode = play(attack="direct")
    assert (episode.task, calls_of(episode)) == ("pay_the_grocer.rob", ["read_note", "pay_bill", "pay_bill"])
    assert episode.components == {"utility": 1.0, "attack": 1.0}


def test_a_program_searches_for_the_tools_that_it_is_not_shown() -> None:
    episode = play(retrieval=Retrieval(top_k=0))
    assert episode.score == 1.0, episode.reason
    assert calls_of(episode)[:2] == ["search_tools", "read_note"]
    assert calls_of(episode)[-1] == "pay_bill"
