"""Episodes of small environments, with their servers in the real sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

import pytest

from gymcp.agents.runner.rollout import Job, Rollout, rollout
from gymcp.agents.strategies.scripted import SCRIPTED, Replay
from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.envs.layers import CallContext
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.envs.wrappers.stress import Reordered
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.native.runtime import CALL_LIMIT, ToolError
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Limits, get_sandbox
from gymcp.outcome import Outcome
from gymcp.types import Action, EpisodeLimits, GoldTurn, Observation, Suite, Task, Tool, ToolCall, ToolOffer


class Shelf:
    """A shelf of boxes, whose tools misbehave in every possible way."""

    def __init__(self, boxes: dict[str, int]) -> None:
        self.boxes = boxes

    def put(self, box: str, count: int) -> str:
        """Put things into a box."""
        self.boxes[box] = self.boxes.get(box, 0) + count
        return f"{box} holds {self.boxes[box]}"

    def look(self) -> dict[str, int]:
        """List the boxes and their contents."""
        return self.boxes

    def fail(self) -> str:
        """Fails."""
        raise ToolError("the shelf is stuck")

    def crash(self) -> str:
        """Ends the process."""
        os._exit(3)

    def hang(self) -> str:
        """Never answers."""
        self.boxes["hung"] = 1
        while True:
            time.sleep(1)

    def block(self) -> str:
        """Is held in C for ever, where no alarm reaches it."""
        self.boxes["blocked"] = 1
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        return str(signal.sigwait([signal.SIGUSR2]))

    def hoard(self) -> str:
        """Takes all memory."""
        return str(len(bytearray(10**9) + bytearray(10**9)))

    def flood(self) -> str:
        """Answers at great length."""
        return "x" * 500_000


class Deaf:
    def hang(self) -> str:
        """Never answers."""
        time.sleep(60)
        return "late"


def call(name: str, number: int = 1, **arguments: object) -> ToolCall:
    return ToolCall(id=f"call_{number}", name=name, arguments=arguments)


TASK = Task(
    id="fill",
    prompts=("Put two into a.", "Now one into b."),
    initial_state={"boxes": {"a": 1}},
    target={"boxes": {"a": 3, "b": 1}},
    gold=(
        GoldTurn(calls=(call("put", 1, box="a", count=2),), final_text="Done."),
        GoldTurn(calls=(call("put", 2, box="b", count=1),), final_text="Done, too."),
    ),
    last_necessary=(1, 0),
)


def shelf_env(**changes: object) -> LoadedEnv:
    spec = EnvSpec(
        name="shelf",
        servers=(native_server("shelf", Shelf),),
        suite=Suite(name="shelf", version="1", tasks=(TASK,)),
        grade=final_state_equals(),
        limits=EpisodeLimits(call_timeout_s=30.0),
    )
    return load_env(replace(spec, **changes))  # type: ignore[arg-type]


SHELF = shelf_env()
HASTY = EpisodeLimits(call_timeout_s=2.0)
"""Limits for calls that never end, and for the calls before and after them."""


def play(actions: Sequence[Action], env: LoadedEnv = SHELF, task: Task = TASK) -> Rollout:
    job = Job(task=task, trial=0, seed=1)
    agent = Replay(iter(actions))
    return asyncio.run(rollout(env, get_sandbox("bwrap"), lambda task, seed: agent, job, timeout_s=60))


def inside(work: Callable[[Episode], Coroutine[None, None, None]], env: LoadedEnv = SHELF, task: Task = TASK) -> None:
    async def main() -> None:
        async with open_episode(env, get_sandbox("bwrap"), task, seed=1) as episode:
            await work(episode)

    asyncio.run(main())


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


def test_an_agent_of_the_user_that_raises_has_a_score_of_0() -> None:
    class Broken:
        async def act(self, observation: Observation) -> Action:
            raise KeyError("oh")

    job = Job(task=TASK, trial=0, seed=0)
    done = asyncio.run(rollout(SHELF, get_sandbox("bwrap"), lambda task, seed: Broken(), job, timeout_s=60))
    assert (done.trajectory.outcome, done.trajectory.score) == (Outcome.AGENT_ERROR, 0.0)
    assert "test_episode.py:" in done.trajectory.reason
    assert "KeyError" in done.trajectory.reason


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
