"""Whatever an agent of the user does, it ends its own episode at most, with an outcome that says so."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gymcp.agents.policies.metering import meter_model
from gymcp.agents.policies.models import ChatModel
from gymcp.agents.strategies import guarded_agent
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.strategies.guarded_agent import GuardedAgent
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.errors import PolicyInfraError, PromptTooLong
from gymcp.outcome import Outcome
from gymcp.types import (
    Action,
    Decision,
    GiveUp,
    Message,
    ModelUsage,
    Observation,
    Sampled,
    Sampling,
    Step,
    Task,
    Tool,
    ToolCall,
)

OBSERVATION = Observation(messages=(Message(role="user", content="Do it."),), tools=())
WAIT_S = 120.0
"""Seconds after which a test that hangs fails."""


class Does:
    """An agent made of one function."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self._do = do

    async def act(self, observation: Observation) -> Any:
        answer = self._do()
        return await answer if asyncio.iscoroutine(answer) else answer


def ask(agent: GuardedAgent, timeout_s: float = WAIT_S) -> Decision | GiveUp:
    async def run() -> Decision | GiveUp:
        async with asyncio.timeout(timeout_s):
            return await agent.act(OBSERVATION)

    return asyncio.run(run())


def guard(do: Callable[[], Any], budget: Budget | None = None) -> GuardedAgent:
    return GuardedAgent(lambda: Does(do), budget or Budget(), set())


def fail(error: BaseException) -> Callable[[], Any]:
    def do() -> Any:
        raise error

    return do


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError: it cancelled itself"),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
)
def test_an_agent_that_raises_is_an_agent_error(error: BaseException, reason: str) -> None:
    ended = ask(guard(fail(error)))
    assert isinstance(ended, GiveUp)
    assert ended.outcome is Outcome.AGENT_ERROR
    assert ended.reason.startswith("the agent raised ")
    assert ended.reason.endswith(reason)


def test_the_first_failure_of_a_kind_is_shown_with_the_users_lines_only(caplog: pytest.LogCaptureFixture) -> None:
    shown: set[str] = set()
    with caplog.at_level(logging.WARNING, logger="gymcp"):
        for _ in range(3):
            ask(GuardedAgent(lambda: Does(fail(KeyError("x"))), Budget(), shown))
    (record,) = caplog.records
    assert "test_guarded_agent.py" in record.getMessage()
    assert record.getMessage().endswith("KeyError: 'x'")
    assert 'guarded_agent.py", line' not in record.getMessage().replace("test_guarded_agent.py", "")


def test_a_failing_agent_factory_is_an_agent_error() -> None:
    def make() -> Does:
        raise ValueError("no such weights")

    ended = ask(GuardedAgent(make, Budget(), set()))
    assert isinstance(ended, GiveUp)
    assert (ended.outcome, "ValueError: no such weights" in ended.reason) == (Outcome.AGENT_ERROR, True)


class Holds(Does):
    """An agent that holds something."""

    def __init__(self, do: Callable[[], Any], close: Callable[[], Any]) -> None:
        super().__init__(do)
        self.close = close


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("do", [lambda: Action(text="hello"), fail(KeyError("x"))])
def test_an_agent_that_holds_something_is_closed(do: Callable[[], Any], is_async: bool) -> None:
    closed: list[str] = []

    async def close() -> None:
        closed.append("closed")

    agent = GuardedAgent(lambda: Holds(do, close if is_async else lambda: closed.append("closed")), Budget(), set())
    ask(agent)
    asyncio.run(agent.close())
    assert closed == ["closed"]


def test_an_agent_that_was_never_made_is_not_closed() -> None:
    asyncio.run(guard(fail(KeyError("x"))).close())


def test_a_close_that_raises_is_shown_once_and_the_episode_stays(caplog: pytest.LogCaptureFixture) -> None:
    shown: set[str] = set()
    with caplog.at_level(logging.WARNING, logger="gymcp"):
        for _ in range(2):
            agent = GuardedAgent(lambda: Holds(lambda: Action(text="hello"), fail(OSError("gone"))), Budget(), shown)
            assert isinstance(ask(agent), Decision)
            asyncio.run(agent.close())
    (record,) = caplog.records
    assert record.getMessage().endswith("OSError: gone")


CALL = ToolCall(id="c", name="look")
HUGE = 10**5000
"""A number that neither JSON nor a column of a record can hold."""
TOKEN = Sampled(prompt_ids=(1,), ids=(2,), logprobs=(0.0,), versions=(("0", 0, 1),))
WORDS = Sampled(prompt_ids=("a",), ids=("b",), logprobs=(0.0,), versions=())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "None as its answer, which must be an Action, a Decision or a GiveUp"),
        ("hello", "str 'hello' as its answer"),
        (Action(text="x" * 1_000_001), "a very long one"),
        (Action(tool_calls=(CALL,) * 1_001), "no tuple of 1000"),
        (Action(text=3), "an Action whose text is no text"),  # type: ignore[arg-type]
        (Action(tool_calls=[CALL]), "tool_calls are no tuple"),  # type: ignore[arg-type]
        (Action(tool_calls=("look",)), "a call that is no ToolCall"),  # type: ignore[arg-type]
        (Action(tool_calls=(ToolCall(id="c", name="look", arguments=7),)), "neither a mapping nor a text"),  # type: ignore[arg-type]
        (Action(tool_calls=(CALL, CALL)), "two calls with the id 'c'"),
        (Decision(action="go"), "str 'go' as its answer"),  # type: ignore[arg-type]
        (Decision(action=Action(text="x"), spent=ModelUsage(model="m", cost=-1.0)), "amounts of 0 or more"),
        (Decision(action=Action(text="x"), sampled=(1, 2)), "not what the model has drawn"),  # type: ignore[arg-type]
        (Decision(action=Action(text="x"), context=-1), "a Decision whose context is no whole number from 0"),
        (Decision(action=Action(text="x"), context=HUGE), "a Decision whose context is no whole number from 0"),
        (Decision(action=Action(text="x"), spent=ModelUsage(model="m", cost=HUGE)), "amounts of 0 or more"),
        (Decision(action=Action(text="x"), sampled=replace(TOKEN, ids=(HUGE,))), "not what the model has drawn"),
        (Decision(action=Action(text="x"), sampled=replace(TOKEN, logprobs=(HUGE,))), "not what the model has drawn"),
        (Decision(action=Action(text="x"), sampled=replace(TOKEN, versions=(("0", 0, HUGE),))), "the model has drawn"),
        (Decision(action=Action(text="x"), sampled=WORDS), "not what the model has drawn"),
        (GiveUp(outcome=Outcome.CANCELLED, reason="ha"), "up with the outcome cancelled"),
        (GiveUp(outcome=Outcome.SCORED, reason="ha"), "up with the outcome scored"),
    ],
)
def test_an_invalid_decision_is_an_agent_error(answer: object, says: str) -> None:
    ended = ask(guard(lambda: answer))
    assert isinstance(ended, GiveUp)
    assert (ended.outcome, says in ended.reason) == (Outcome.AGENT_ERROR, True), ended.reason


def test_an_id_of_an_earlier_call_is_an_agent_error() -> None:
    agent = guard(lambda: Action(tool_calls=(CALL,)))

    async def twice() -> list[Decision | GiveUp]:
        return [await agent.act(OBSERVATION), await agent.act(OBSERVATION)]

    first, second = asyncio.run(twice())
    assert isinstance(first, Decision)
    assert isinstance(second, GiveUp)
    assert "two calls with the id 'c'" in second.reason


def test_the_answers_of_a_record_count_for_the_budget() -> None:
    usage = ModelUsage(model="m", completion_tokens=5)
    agent = guard(lambda: Action(text="x"), Budget(tokens=5))
    agent.resume([Step(turn=0, observation=OBSERVATION, action=Action(text="x"), model_usage=usage)])
    assert ask(agent) == GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason="5 tokens")


def spin() -> None:
    while True:
        pass


def spin_on() -> None:
    """Swallows what can be swallowed."""
    while True:
        try:
            spin()
        except Exception:
            continue


@pytest.mark.parametrize("hold_up", [spin, spin_on, lambda: time.sleep(WAIT_S)], ids=["spin", "swallow", "sleep"])
def test_an_agent_that_holds_up_the_loop_is_interrupted(
    hold_up: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_agent, "HOLD_UP_S", 0.2)
    ended = ask(guard(hold_up))
    assert isinstance(ended, GiveUp)
    assert ended.outcome is Outcome.AGENT_ERROR
    assert "test_guarded_agent.py:" in ended.reason
    assert "the agent held up all episodes for 0.2 s" in ended.reason


def test_an_agent_that_waits_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_agent, "HOLD_UP_S", 0.2)

    async def wait() -> Action:
        for _ in range(4):
            await asyncio.sleep(0.1)
        return Action(text="done")

    assert ask(guard(wait)) == Decision(action=Action(text="done"))


def test_an_agent_that_swallows_its_cancellation_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_agent, "CANCEL_GRACE_S", 0.1)
    swallowed = 0

    async def stay() -> Action:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1

    with pytest.raises(TimeoutError):
        ask(guard(stay), 0.1)
    assert 1 <= swallowed < 5


def test_a_cancelled_agent_may_clean_up() -> None:
    cleaned = False

    async def wait() -> Action:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True
        raise AssertionError

    with pytest.raises(TimeoutError):
        ask(guard(wait), 0.1)
    assert cleaned


def test_a_missing_model_is_not_an_agent_error() -> None:
    with pytest.raises(PolicyInfraError, match="gone"):
        ask(guard(fail(PolicyInfraError("gone"))))
    ended = ask(guard(fail(PromptTooLong("9 tokens"))))
    assert ended == GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason="context: 9 tokens")


@dataclass
class Echo:
    """A chat model that says the number of its answer, for 2 each."""

    asked: int = 0

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        self.asked += 1
        spent = ModelUsage(model="echo", prompt_tokens=10, completion_tokens=3, cost=2.0)
        return Decision(action=Action(text=str(self.asked)), spent=spent)


def best_of_three(budget: Budget) -> GuardedAgent:
    """An agent that asks three times and returns the second answer."""
    make = react(meter_model(ChatModel(name="echo", policy=Echo())), ReactSettings())

    class Chooser:
        async def act(self, observation: Observation) -> Decision | GiveUp:
            agents = [make(Task(id="t", prompts=("p",)), seed) for seed in range(3)]
            answers = [await agent.act(observation) for agent in agents]
            decision = answers[1]
            assert isinstance(decision, Decision)
            return decision

    return GuardedAgent(Chooser, budget, set())


def test_every_answer_of_the_model_counts_though_one_is_returned() -> None:
    decision = ask(best_of_three(Budget()))
    assert isinstance(decision, Decision)
    assert decision.action == Action(text="2")
    assert decision.spent == ModelUsage(model="echo", prompt_tokens=30, completion_tokens=9, cost=6.0)


def test_a_budget_holds_for_all_answers_together() -> None:
    agent = best_of_three(Budget(cost=6.0))

    async def twice() -> list[Decision | GiveUp]:
        return [await agent.act(OBSERVATION), await agent.act(OBSERVATION)]

    first, second = asyncio.run(twice())
    assert isinstance(first, Decision)
    assert second == GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason="6 of money for the model")


def test_an_agent_outside_the_main_thread_runs_without_signals() -> None:
    async def run() -> Decision | GiveUp:
        return await asyncio.to_thread(ask, guard(lambda: Action(text="done")))

    assert asyncio.run(run()) == Decision(action=Action(text="done"))
