"""Programs that send more than the harness can hold, and messages that no argument can hold."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest
from gateway_serving import Scripted, Served, post, run

from gymcp.agents.endpoint import http_server
from gymcp.agents.policies.models import ChatModel
from gymcp.agents.programs.agent import ProgramAgent, open_program_agents
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.settings import ProgramSettings, Turns
from gymcp.outcome import Outcome
from gymcp.types import Action, Decision, GiveUp, Message, Observation, Sampling, Task, Tool

TASK = Task(id="t", prompts=("Pay Bob.",))


@contextlib.asynccontextmanager
async def playing(*argv: str, turns: Turns = "restart") -> AsyncIterator[ProgramAgent]:
    """The agent of one episode."""
    async with open_program_agents(None, ProgramSettings(argv=argv, turns=turns)) as agents:
        agent = agents(TASK, 1)
        assert isinstance(agent, ProgramAgent)
        try:
            yield agent
        finally:
            await agent.close()


def says(text: str) -> Observation:
    return Observation(messages=(Message(role="user", content=text),), tools=())


def test_answers_before_their_turn_stay_in_the_programs_pipe() -> None:
    async def main() -> None:
        async with playing("yes", '{"text": "Done."}', turns="stdin") as agent:
            for _ in range(2):
                decision = await agent.act(says("Pay Bob."))
                assert isinstance(decision, Decision)
                assert decision.action.text == "Done."
                for _ in range(1_000):
                    await asyncio.sleep(0)
                assert agent._exchange.events.empty()

    asyncio.run(main())


@pytest.mark.parametrize("turns", ["restart", "stdin"])
def test_a_flood_of_output_leaves_the_event_loop_to_others(turns: Turns) -> None:
    """CPU time of this thread while a program writes for three seconds: a burst of 0.2 s, and then a twentieth."""

    async def main() -> None:
        async with playing("yes", "no answer", turns=turns) as agent:
            began = time.thread_time()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(agent.act(says("Pay Bob.")), 3)
            assert time.thread_time() - began < 1

    asyncio.run(main())


@pytest.mark.parametrize("turns", ["restart", "stdin"])
def test_an_empty_message_is_a_turn(turns: Turns) -> None:
    async def main() -> None:
        async with playing("sh", "-c", """read line; echo '{"text": "Yes?"}'; cat""", turns=turns) as agent:
            decision = await asyncio.wait_for(agent.act(says("")), 60)
            assert isinstance(decision, Decision)
            assert "Yes?" in decision.action.text

    asyncio.run(main())


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("x" * 131_072, "an argument has 131,072 bytes, and 131,071 are the most: write {prompt_file} for {prompt}"),
        ("a\0b", "the user's message has a NUL character, which no argument can hold: write {prompt_file} for"),
    ],
)
def test_a_message_unfit_for_an_argument_is_the_fault_of_the_command(prompt: str, words: str) -> None:
    """It would fail in the same way each time, so it is no failure of the sandbox, which is tried again."""

    async def main() -> None:
        async with playing("echo", "{prompt}") as agent:
            end = await agent.act(says(prompt))
            assert isinstance(end, GiveUp)
            assert (end.outcome, words in end.reason) == (Outcome.AGENT_ERROR, True), end.reason
        async with playing("sh", "-c", "wc -c <{prompt_file}") as agent:
            decision = await agent.act(says(prompt))
            assert isinstance(decision, Decision)
            assert decision.action.text == str(len(prompt))

    asyncio.run(main())


class Waiting(Scripted):
    """A policy that answers once it is told to."""

    def __init__(self) -> None:
        super().__init__(Action(text="b"))
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        self.asked.set()
        await self.goes_on.wait()
        return await super().chat(messages, tools, sampling)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/mcp"])
def test_requests_that_hold_too_much_are_refused_and_others_go_on(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_HELD_BYTES", 100_000)
    policy = Waiting()
    long = {"model": "m", "messages": [{"role": "user", "content": "a" * 60_000}]}

    async def work(served: Served) -> None:
        first: asyncio.Task[httpx.Response] = asyncio.ensure_future(post(served, "/v1/chat/completions", long))
        await policy.asked.wait()
        refused = await post(served, path, long)
        assert (refused.status_code, "have more than 100000 bytes: wait for answers" in refused.text) == (429, True)
        other = Exchange(ChatModel(name="stub", policy=policy), ProgramSettings(argv=("true",)), seed=2)
        with served.gateway.admit(other):
            second: asyncio.Task[httpx.Response] = asyncio.ensure_future(
                post(served, "/v1/chat/completions", long, key=other.token)
            )
            policy.goes_on.set()
            assert [(await each).status_code for each in (first, second)] == [200, 200]
        assert (await post(served, "/v1/chat/completions", long)).status_code == 200
        assert served.exchange.requests.size == 0

    run(tmp_path, policy, work)
