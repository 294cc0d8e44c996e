"""Users that share the world with the agent: their own tools, scripts, models, and copies of their episodes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from gymcp.agents.runner.rollout import Job, rollout
from gymcp.agents.strategies.scripted import SCRIPTED, Replay
from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.envs.episodes.user_turn import MAX_TOOL_ROUNDS
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.envs.users import GREETING, InstructedUser, ScriptedUser, SimulatedUser
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import UserView
from gymcp.types import (
    Action,
    Decision,
    GoldTurn,
    Message,
    ModelUsage,
    Sampling,
    Suite,
    Task,
    Tool,
    ToolCall,
    Trajectory,
    UserScript,
)


class House:
    """A house with a fuse that a technician can see, and a switch that only the inhabitant can reach."""

    def __init__(self, fuse: bool, switch: bool) -> None:
        self.fuse = fuse
        self.switch = switch
        self.lamp = "none"

    def mend_fuse(self) -> str:
        """Mend the fuse."""
        self.fuse = True
        return "mended"

    def press_switch(self) -> str:
        """Press the switch."""
        self.switch = not self.switch
        return f"the switch is {'on' if self.switch else 'off'}"

    def press_switch_twice(self) -> str:
        """Press the switch twice."""
        return "nothing has changed"

    def choose_lamp(self, colour: str) -> str:
        """Put a lamp in."""
        self.lamp = colour
        return f"the lamp is {colour}"

    def cut_power(self) -> str:
        """Ends everything."""
        os._exit(3)


def call(name: str, number: int = 1, **arguments: object) -> ToolCall:
    return ToolCall(id=f"call_{number}", name=name, arguments=arguments)


MENDED = {"fuse": True, "switch": True, "lamp": "red"}
SCRIPT = (call("choose_lamp", colour="red"), call("press_switch"))
TASK = Task(
    id="dark",
    prompts=("It is dark.",),
    initial_state={"fuse": False, "switch": False},
    target=MENDED,
    gold=(
        GoldTurn(calls=(call("mend_fuse"),), final_text="Please choose lamp, then press_switch."),
        GoldTurn(final_text="Let there be light."),
    ),
    last_necessary=(0, 1),
    user=UserScript(scenario="You live in a dark house."),
)


def house(**changes: object) -> LoadedEnv:
    spec = EnvSpec(
        name="house",
        servers=(native_server("house", House),),
        suite=Suite(name="house", version="1", tasks=(TASK,)),
        grade=final_state_equals(),
        user=lambda task: InstructedUser(opening=task.prompts[0], script=SCRIPT),
        user_tools=frozenset({"press_switch", "press_switch_twice", "choose_lamp", "cut_power"}),
    )
    return load_env(replace(spec, **changes))  # type: ignore[arg-type]


HOUSE = house()


def play(env: LoadedEnv, agent: str | Sequence[Action], task: Task = TASK) -> Trajectory:
    make = SCRIPTED[agent] if isinstance(agent, str) else lambda task, seed: Replay(iter(agent))
    return asyncio.run(
        rollout(env, get_sandbox("bwrap"), make, Job(task=task, trial=0, seed=1), timeout_s=60)
    ).trajectory


def inside(env: LoadedEnv, work: Callable[[Episode], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        async with open_episode(env, get_sandbox("bwrap"), TASK, seed=1) as episode:
            await work(episode)

    asyncio.run(main())


def user_texts(trajectory: Trajectory) -> list[str]:
    """Texts of the user's messages."""
    return [m.content for step in trajectory.steps for m in step.observation.messages if m.role == "user"]


@pytest.mark.parametrize(("agent", "score"), [("oracle", 1.0), ("null", 0.0), ("mutated", 0.0)])
def test_scripted_agents_get_their_scores_if_half_of_the_gold_is_the_user_s(agent: str, score: float) -> None:
    done = play(HOUSE, agent)
    assert (done.outcome, done.score) == (Outcome.SCORED, score)


def test_the_user_s_calls_are_recorded_apart_and_the_user_s_tools_are_not_offered() -> None:
    done = play(HOUSE, "oracle")
    told = done.steps[1]
    assert [(made.id, made.name) for act in told.user_acts for made in act.calls] == [
        ("user_1", "choose_lamp"),
        ("user_2", "press_switch"),
    ]
    assert user_texts(done) == ["It is dark.", "choose_lamp: the lamp is red\npress_switch: the switch is on"]
    assert [tool.name for tool in told.observation.tools] == ["mend_fuse"]
    assert (done.usage.tool_calls, done.usage.user_calls) == (1, 2)
    assert told.world_key == done.final_key != done.steps[0].world_key
    assert set(asyncio.run(list_tools(HOUSE, get_sandbox("bwrap")))) == {"mend_fuse"}


def test_an_agent_that_calls_a_tool_of_the_user_is_refused() -> None:
    done = play(HOUSE, [Action(tool_calls=(call("press_switch"),)), Action(text="Done."), Action(text="Done.")])
    assert done.steps[0].results[0].content == "no tool 'press_switch'; have mend_fuse"
    assert done.final_key == done.initial_key


def reply(user: InstructedUser, *messages: Message) -> Action | None:
    tools = tuple(
        Tool(name=name, input_schema={"required": required})
        for name, required in (("press_switch", []), ("press_switch_twice", []), ("choose_lamp", ["colour"]))
    )
    answered = asyncio.run(user.reply(UserView(messages=messages, tools=tools)))
    assert not isinstance(answered, Decision)
    return answered


SAYS = Message(role="user", content="It is dark.")


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        ("Press switch twice!", ["press_switch_twice"]),
        ("choose_lamp, press_switch and PRESS SWITCH", ["choose_lamp", "press_switch", "press_switch"]),
        ("press_switches", []),
        ("Have you tried to press it?", []),
        ("", []),
    ],
)
def test_an_instructed_user_calls_the_tools_that_are_named(words: str, calls: list[str]) -> None:
    user = InstructedUser(opening="It is dark.", script=SCRIPT)
    done = reply(user, SAYS, Message(role="assistant", content=words))
    assert done is not None
    assert [made.name for made in done.tool_calls] == calls


def test_an_instructed_user_leaves_if_nothing_remains_or_the_agent_does_not_help() -> None:
    user = InstructedUser(opening="It is dark.", script=SCRIPT, patience=1)
    idle = Message(role="assistant", content="Hm.")
    first = reply(user, SAYS, idle)
    assert first == Action(text="What can I do? It is dark.")
    assert reply(user, SAYS, idle, SAYS, idle) is None
    acted = Message(role="user", content="", tool_calls=SCRIPT)
    assert reply(user, SAYS, idle, acted, SAYS, idle) is None
    again = reply(user, SAYS, idle, acted, SAYS, Message(role="assistant", content="choose lamp"))
    assert again == Action(text="I do not know with what: choose_lamp.")


@dataclass
class Lines:
    """A model that gives prepared answers, and records the requests."""

    actions: Iterator[Action]
    asked: list[tuple[list[Message], tuple[Tool, ...], int | None]]

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        self.asked.append((list(messages), tuple(tools), sampling.seed))
        return Decision(action=next(self.actions), spent=ModelUsage(model="m", prompt_tokens=7, cost=0.5))


def make_simulated(*actions: Action) -> tuple[LoadedEnv, Lines]:
    lines = Lines(iter(actions), [])
    return house(user=lambda task: SimulatedUser(policy=lines, scenario=task.user.scenario or "")), lines


def test_a_model_plays_the_user_with_tools_of_its_own() -> None:
    env, lines = make_simulated(
        Action(text="No light here."),
        Action(text="nobody hears this", tool_calls=(call("press_switch"), call("mend_fuse", 1))),
        Action(text="The switch is on."),
        Action(text="Thanks. ###STOP###"),
    )
    done = play(env, [Action(text="Press the switch."), Action(text="Good."), Action(text="not heard")])
    assert user_texts(done) == ["No light here.", "The switch is on."]
    assert [[result.content for result in act.results] for act in done.steps[0].user_acts] == [
        ["the switch is on", "no tool 'mend_fuse'; have press_switch, press_switch_twice, choose_lamp, cut_power"]
    ]
    first, _, third, _ = lines.asked
    assert first[0] == [
        Message(role="system", content=TASK.user.scenario or ""),
        Message(role="user", content=GREETING),
    ]
    assert first[1] == ()
    assert [(m.role, m.content) for m in third[0][2:]] == [
        ("assistant", "No light here."),
        ("user", "Press the switch."),
        ("assistant", ""),
        ("tool", "the switch is on"),
        ("tool", done.steps[0].user_acts[0].results[1].content),
    ]
    assert len({seed for _, _, seed in lines.asked}) == 4
    assert (done.outcome, len(done.steps)) == (Outcome.SCORED, 2)
    assert (done.usage.user_cost, done.usage.cost, done.usage.prompt_tokens, done.usage.models) == (2.0, 2.0, 0, {})


def test_a_user_that_never_stops_calling_tools_must_speak_at_last() -> None:
    acts = [Action(text="still", tool_calls=(call("press_switch"),))] * (MAX_TOOL_ROUNDS + 1)
    env, lines = make_simulated(Action(text="Dark."), *acts, Action(text="###STOP###"))
    done = play(env, [Action(text="Go on."), Action(text="Stop.")])
    assert len(done.steps[0].user_acts) == MAX_TOOL_ROUNDS
    assert user_texts(done) == ["Dark.", "still"]
    assert [bool(tools) for _, tools, _ in lines.asked[-2:]] == [False, True]


def test_a_server_that_the_user_breaks_is_env_infra() -> None:
    env, _ = make_simulated(Action(text="Dark."), Action(tool_calls=(call("cut_power"),)))
    done = play(env, [Action(text="Do something.")])
    assert (done.outcome, done.score) == (Outcome.ENV_INFRA, None)


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_copies_of_an_episode_hold_the_user_s_changes(start: str) -> None:
    """Copied live or, if servers cannot be copied, replayed."""

    async def work(episode: Episode) -> None:
        await episode.step(Action(text="press_switch"))
        async with episode.fork(1) as (child,):
            assert child.world_key == episode.world_key
            await child.step(Action(tool_calls=(call("mend_fuse"),)))
            await child.step(Action(text="choose_lamp"))
            assert child.states[child.state_ref or ""] == MENDED
            last = await child.step(Action(text="Done."))
            assert (last.terminated, last.reward) == (True, 1.0)
            record = child.trajectory
            assert record is not None
            assert [made.id for step in record.steps for act in step.user_acts for made in act.calls] == [
                "user_1",
                "user_2",
            ]

    inside(house(servers=(native_server("house", House, start=start),)), work)  # type: ignore[arg-type]


def test_a_scripted_user_says_the_prompts_whatever_the_agent_says() -> None:
    user = ScriptedUser(("one", "two"))
    heard = (Message(role="user", content="one"), Message(role="assistant", content="press_switch"))
    assert asyncio.run(user.reply(UserView())) == Action(text="one")
    assert asyncio.run(user.reply(UserView(messages=heard))) == Action(text="two")
    assert asyncio.run(user.reply(UserView(messages=heard * 2))) is None
