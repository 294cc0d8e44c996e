"""Stressors: their effects on tools, the same for the same seed, and the agents that cope with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from desk import ask, desk_env, desk_task, in_episode, last_state
from shop import ENV, TASK, call

from gymcp.agents.runner.rollout import Job, rollout
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.envs.layers import Layer
from gymcp.envs.spec import EnvSpec, load_env
from gymcp.envs.wrappers.stress import STRESSORS, Faults, Latency, Missing, Truncated, add_stressors
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.matching import server_calls
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.types import Action, Step, Trajectory


def play(agent: str, *names: str, seed: int = 0, spec: EnvSpec = ENV) -> Trajectory:
    env = load_env(add_stressors(spec, names))
    job = Job(task=TASK, trial=0, seed=seed)
    return asyncio.run(rollout(env, get_sandbox("bwrap"), SCRIPTED[agent], job, timeout_s=60)).trajectory


def with_layer(layer: Layer) -> EnvSpec:
    return replace(ENV, layers=(layer,))


def list_texts(trajectory: Trajectory) -> list[list[str]]:
    return [[message.content for message in step.observation.messages] for step in trajectory.steps]


def list_offered(trajectory: Trajectory) -> list[str]:
    return [tool.name for tool in trajectory.steps[0].observation.tools]


@pytest.mark.parametrize("name", STRESSORS)
def test_the_same_seed_stresses_the_same_way(name: str) -> None:
    one, other = play("adaptive", name, seed=5), play("adaptive", name, seed=5)
    assert (list_texts(one), one.score, list_offered(one)) == (list_texts(other), other.score, list_offered(other))


def test_renamed_tools_fail_an_agent_that_does_not_read_the_definitions() -> None:
    assert play("oracle", "renamed").score == 0
    read = play("adaptive", "renamed")
    assert read.score == 1
    assert list_offered(read) == ["readNote", "payBill"]
    assert [step.action.tool_calls[0].arguments for step in read.steps[:2]] == [
        {"nameValue": "bill"},
        {"toValue": "grocer", "amountValue": 12},
    ]


def test_a_record_keeps_the_server_s_name_of_a_renamed_tool() -> None:
    steps = play("adaptive", "renamed").steps
    known = [(call.name, call.arguments) for step in steps for call in server_calls(step)]
    assert known == [("read_note", {"name": "bill"}), ("pay_bill", {"to": "grocer", "amount": 12})]
    assert [call.name for step in steps for call in step.action.tool_calls] == ["readNote", "payBill"]
    assert all(result.executed_call is None for step in play("adaptive").steps for result in step.results)


@pytest.mark.parametrize(
    ("names", "tool", "argument"),
    [
        (("stale",), "remember", "text"),
        (("stale", "renamed"), "rememberValue", "textValue"),
        (("renamed", "stale"), "rememberValue", "textValue"),
    ],
)
def test_a_repeated_call_gets_the_first_answer(names: tuple[str, ...], tool: str, argument: str) -> None:
    plain = desk_env(desk_task({"files": {}}))
    env = replace(plain, spec=add_stressors(plain.spec, names))

    async def work(episode: Episode) -> None:
        assert [await ask(episode, tool, **{argument: "a"}) for _ in range(2)] == ["a", "a"]
        assert last_state(episode)["files"]["memory"]["text"] == "aa"  # it was made all the same

    asyncio.run(in_episode(env, work))


def test_schemas_change_in_mid_episode() -> None:
    steps = play("adaptive", "changed").steps
    assert [step.action.tool_calls[0].name for step in steps[:2]] == ["read_note", "payBill"]


def test_a_call_that_failed_for_now_may_succeed_when_repeated() -> None:
    half = with_layer(Faults(rate=0.5))
    ended = [(play("oracle", seed=s, spec=half), play("adaptive", seed=s, spec=half)) for s in range(4)]
    assert min(by_heart.score or 0 for by_heart, _ in ended) == 0
    assert [patient.score for _, patient in ended] == [1, 1, 1, 1]


def test_latency_counts_towards_the_tools_budget_without_waiting() -> None:
    late = play("oracle", spec=with_layer(Latency(mean_s=1e6)))
    assert (late.outcome, len(late.steps)) == (Outcome.BUDGET_EXHAUSTED, 1)
    assert "300 s of the tools' time" in late.reason


def test_results_are_cut_or_surrounded_by_noise() -> None:
    assert list_texts(play("oracle", spec=with_layer(Truncated(chars=9))))[1] == ["12 euros."]
    first, *middle, last = list_texts(play("oracle", "noisy"))[1][0].splitlines()
    assert middle == ["12 euros. Thank you!"]
    assert (first[0], last[0]) == ("[", "[")


def test_distractors_are_offered_and_find_nothing() -> None:
    async def main() -> tuple[list[str], Step]:
        env = load_env(add_stressors(ENV, ["distractors"]))
        async with open_episode(env, get_sandbox("bwrap"), TASK, seed=0) as episode:
            names = [tool.name for tool in episode.observation.tools]
            stray = next(name for name in names if name not in ("read_note", "pay_bill"))
            await episode.step(Action(tool_calls=(call(stray, query="x"),)))
            return names, episode.state.steps[0]

    names, step = asyncio.run(main())
    assert len(names) == 12
    assert {"read_note", "pay_bill"} < set(names)
    assert [result.content for result in step.results] == ["nothing found"]


def test_a_missing_tool_can_be_the_needed_one() -> None:
    assert len(list_offered(play("null", spec=with_layer(Missing(share=0.5))))) == 1


def test_stressors_combine() -> None:
    both = play("adaptive", "renamed", "noisy")
    assert both.score == 1
    assert list_texts(both)[1][0].startswith("[")


def test_a_copy_of_a_stressed_episode_continues_as_the_original_would() -> None:
    async def main() -> list[list[str]]:
        env = load_env(with_layer(Faults(rate=0.5)))
        async with open_episode(env, get_sandbox("bwrap"), TASK, seed=3) as episode:
            for number in range(4):
                await episode.step(Action(tool_calls=(call("read_note", number, name="bill"),)))
            async with episode.fork(2) as forks:
                found = []
                for each in (episode, *forks):
                    for number in range(4, 8):
                        await each.step(Action(tool_calls=(call("read_note", number, name="bill"),)))
                    found.append([result.content for step in each.state.steps for result in step.results])
                return found

    first, second, third = asyncio.run(main())
    assert first == second == third
    assert len(set(first)) == 2


def test_an_unknown_stressor_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="no stressor 'rain'; have latency, faults"):
        add_stressors(ENV, ["rain"])
