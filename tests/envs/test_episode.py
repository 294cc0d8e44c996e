"""Episodes of small environments, with their servers in the real sandbox."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest
from misbehaving_shelf import SHELF, TASK, Shelf, call, inside, play, shelf_env

from gymcp.agents.runner.rollout import Job, rollout
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.envs.layers import CallContext
from gymcp.envs.wrappers.stress import Reordered
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.types import Action, EpisodeLimits, GoldTurn, Tool, ToolCall, ToolOffer


@pytest.mark.parametrize(("agent", "score"), [("oracle", 1.0), ("null", 0.0), ("mutated", 0.0)])
def test_scripted_agents_get_their_scores(agent: str, score: float) -> None:
    done = asyncio.run(
        rollout(SHELF, get_sandbox("bwrap"), SCRIPTED[agent], Job(task=TASK, trial=0, seed=0), timeout_s=60)
    )
    assert (done.trajectory.outcome, done.trajectory.score) == (Outcome.SCORED, score)


def test_every_episode_starts_from_the_same_state() -> None:
    first = play([Action(tool_calls=(call("put", box="a", count=99),))])
    second = play([Action()])
    assert first.trajectory.initial_key == second.trajectory.initial_key
    assert first.trajectory.final_key != first.trajectory.initial_key


def test_a_user_turn_ends_when_the_agent_speaks_and_the_reward_comes_last() -> None:
    async def work(episode: Episode) -> None:
        assert [m.content for m in episode.observation.messages] == ["Put two into a."]
        put = await episode.step(Action(tool_calls=(call("put", box="a", count=2),)))
        assert [m.content for m in put.observation.messages] == ["a holds 3"]
        spoke = await episode.step(Action(text="Done."))
        assert [m.content for m in spoke.observation.messages] == ["Now one into b."]
        await episode.step(Action(tool_calls=(call("put", box="b", count=1),)))
        last = await episode.step(Action(text="Done."))
        assert (put.reward, spoke.reward, last.reward) == (0.0, 0.0, 1.0)
        assert (spoke.terminated, last.terminated, last.truncated) == (False, True, False)

    inside(work)


def test_states_are_recorded_by_content_once() -> None:
    done = play([Action(tool_calls=(call("look"),)), Action(tool_calls=(call("put", box="a", count=0),)), Action()])
    refs = {step.state_ref for step in done.trajectory.steps}
    assert [done.states[ref] for ref in refs if ref] == [{"boxes": {"a": 1}}]


def test_a_read_keeps_the_world_but_changes_the_anchor() -> None:
    done = play([Action(tool_calls=(call("look"),)), Action(tool_calls=(call("look"),)), Action()])
    first, second, _ = done.trajectory.steps[:3]
    assert first.world_key == second.world_key
    assert first.state_key != second.state_key


def test_the_anchor_can_be_the_world_alone() -> None:
    done = play([Action(tool_calls=(call("look"),)), Action(tool_calls=(call("look"),))], shelf_env(anchor="world"))
    assert done.trajectory.steps[0].state_key == done.trajectory.steps[1].state_key


def test_an_error_of_a_tool_is_an_observation() -> None:
    done = play([Action(tool_calls=(call("fail"),)), *([Action()] * 2)])
    result = done.trajectory.steps[0].results[0]
    assert (result.is_error, result.content) == (True, "the shelf is stuck")
    assert done.trajectory.outcome is Outcome.SCORED


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "must be a JSON object"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"box": ' + "[" * 900 + "]" * 900 + ', "count": 1}', "nested more than"),
        ({"box": "a", "count": "many"}, "count"),
        ({"box": "a"}, "count"),
        ({"box": "a", "count": 1, "extra": 1}, "extra"),
        ({"box": "\ud800", "count": 1}, "cannot be written as JSON"),
        ({"box": "a", "count": float("nan")}, "cannot be written as JSON"),
        ({"box": "x" * 10_000_000, "count": 1}, "at most"),
        ('{"box": "' + "x" * 10_000_000 + '", "count": 1}', "at most"),
    ],
)
def test_bad_arguments_are_an_observation(arguments: dict[str, object] | str, said: str) -> None:
    bad = ToolCall(id="call_1", name="put", arguments=arguments)
    done = play([Action(tool_calls=(bad,)), Action(), Action()])
    result = done.trajectory.steps[0].results[0]
    assert result.is_error
    assert said in result.content
    assert done.trajectory.outcome is Outcome.SCORED
    assert done.trajectory.steps[0].world_key == done.trajectory.initial_key


def test_an_unknown_tool_is_an_observation_that_names_the_known_tools() -> None:
    done = play([Action(tool_calls=(call("gymcp/state"),)), Action(), Action()])
    result = done.trajectory.steps[0].results[0]
    assert result.is_error
    assert "no tool 'gymcp/state'; have" in result.content
    assert "put" in result.content


def test_a_long_result_is_cut_for_the_agent_and_kept_for_the_record() -> None:
    done = play([Action(tool_calls=(call("flood"),)), Action(), Action()])
    seen = done.trajectory.steps[1].observation.messages[0].content
    assert len(seen) < 101_000
    assert seen.endswith("[cut: 400000 more characters]")
    assert len(done.trajectory.steps[0].results[0].content) == 500_000


def test_the_oracle_fits_its_calls_into_the_step_budget() -> None:
    many = tuple(call("put", number, box="a", count=1) for number in range(34))
    task = replace(
        TASK,
        prompts=("Fill a.",),
        gold=(GoldTurn(calls=many),),
        target={"boxes": {"a": 35}},
        limits=EpisodeLimits(steps_per_turn=20),
    )
    done = asyncio.run(
        rollout(SHELF, get_sandbox("bwrap"), SCRIPTED["oracle"], Job(task=task, trial=0, seed=0), timeout_s=60)
    )
    assert done.trajectory.score == 1.0
    assert max(len(step.action.tool_calls) for step in done.trajectory.steps) == 2


def test_withheld_tools_are_neither_offered_nor_run() -> None:
    task = replace(TASK, offer=ToolOffer(withheld=(frozenset({"put"}), frozenset())))

    async def work(episode: Episode) -> None:
        assert "put" not in [tool.name for tool in episode.observation.tools]
        refused = await episode.step(Action(tool_calls=(call("put", box="a", count=2),)))
        assert refused.observation.messages[0].is_error
        spoke = await episode.step(Action(text="I cannot."))
        assert "put" in [tool.name for tool in spoke.observation.tools]

    inside(work, task=task)


def test_tools_of_two_servers_are_qualified_if_their_names_collide() -> None:
    two = (native_server("left", Shelf), native_server("right", Shelf))
    env = shelf_env(servers=two)
    task = replace(TASK, initial_state={"left": {"boxes": {}}, "right": {"boxes": {"z": 9}}})

    async def work(episode: Episode) -> None:
        assert {"left__put", "right__put"} <= {tool.name for tool in episode.observation.tools}
        seen = await episode.step(Action(tool_calls=(call("right__look"), call("left__look", 2))))
        assert [json.loads(m.content) for m in seen.observation.messages] == [{"z": 9}, {}]
        state = episode.states[episode.record(Outcome.SCORED).final_state or ""]
        assert state == {"left": {"boxes": {}}, "right": {"boxes": {"z": 9}}}

    inside(work, env, task)


def test_only_the_class_enters_the_sandbox() -> None:
    source = SHELF.servers[0].mounts[0].source
    text = (source / "server_main.py").read_text()
    assert "class Shelf" in text
    assert "Put two into a." not in text
    assert sorted(p.name for p in source.rglob("*.py")) == ["runtime.py", "server_main.py"]


def test_the_seconds_of_an_episode_count_its_reset_once() -> None:
    async def measure() -> None:
        started = time.perf_counter()
        async with open_episode(SHELF, get_sandbox("bwrap"), TASK, seed=1) as episode:
            await episode.step(Action(text="Done."))
            usage = episode.record(Outcome.SCORED).usage
            assert 0 < usage.reset_s < usage.wall_s <= time.perf_counter() - started

    asyncio.run(measure())


def test_the_tools_behind_each_layer_are_computed_once_for_a_step_and_once_for_the_next_observation() -> None:
    filters: list[int] = []

    class Counting(Reordered):
        def filter_tools(self, context: CallContext, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
            filters.append(context.index)
            return tools

    async def work(episode: Episode) -> None:
        filters.clear()
        await episode.step(Action(tool_calls=tuple(call("look", number) for number in range(5))))
        assert filters == [0] * 3 * 2

    inside(work, shelf_env(layers=(Counting(), Counting(), Counting())))
