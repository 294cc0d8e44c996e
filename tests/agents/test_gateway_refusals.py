"""The gateway of programs, asked by clients that are wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_serving import Scripted, Served, post, run

from gymcp.agents.policies.models import ChatModel
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.strategies.budgets import Budget
from gymcp.errors import PromptTooLong
from gymcp.outcome import Outcome
from gymcp.types import (
    Action,
    GiveUp,
)

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/chat/completions", b"{", 400, "the body is not JSON"),
        ("/v1/chat/completions", b"\xff", 400, "the body is"),
        ("/v1/chat/completions", b"[" * 100_000, 400, "the body is nested"),
        ("/v1/chat/completions", {}, 400, "'messages' is missing or empty"),
        ("/v1/chat/completions", {**HELLO, "n": 2}, 400, "'n' is not supported"),
        ("/v1/chat/completions", {"messages": "a"}, 400, "'messages' has the wrong type: str"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "'image_url' is not"),
        ("/v1/chat/completions", {"messages": [{"role": "king", "content": "a"}]}, 400, "no role 'king'"),
        ("/v1/chat/completions", {**HELLO, "tools": [{"type": "web_search"}]}, 400, "'web_search' is not supported"),
        ("/v1/chat/completions", {**HELLO, "max_tokens": "9"}, 400, "'max_tokens' has the wrong type"),
        ("/v1/responses", {"input": "a", "previous_response_id": "r"}, 400, "send the whole conversation"),
        ("/v1/responses", {"input": [{"type": "computer_call"}]}, 400, "'computer_call' is not supported"),
        ("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}, 400, "'web_search' is not supported"),
        ("/v1/messages", {"messages": []}, 400, "'messages' is missing or empty"),
        ("/v1/messages", {"messages": [{"role": "user", "content": []}]}, 400, "'messages' is missing or empty"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "'image' is not"),
        ("/v1/embeddings", {}, 404, ""),
    ],
)
def test_a_request_that_is_not_supported_is_one_error(
    tmp_path: Path, path: str, body: Any, status: int, words: str
) -> None:
    async def work(served: Served) -> None:
        answer = await post(served, path, body)
        assert (answer.status_code, words in answer.text) == (status, True), answer.text
        fine = await post(served, "/v1/chat/completions", HELLO)
        assert fine.status_code == 200

    run(tmp_path, Scripted(Action(text="b")), work)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models", "/mcp", "/"])
@pytest.mark.parametrize("key", ["-", "x" * 32])
def test_a_key_of_no_live_episode_opens_nothing(tmp_path: Path, path: str, key: str) -> None:
    policy = Scripted(Action(text="b"))

    async def work(served: Served) -> None:
        answer = await post(served, path, HELLO, key=key)
        assert (answer.status_code, "not that of a live episode" in answer.text) == (401, True)

    run(tmp_path, policy, work)
    assert policy.messages == []


def test_the_key_of_an_ended_episode_opens_nothing(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        ended = Exchange(ChatModel(name="stub", policy=Scripted()), ProgramSettings(argv=("true",)), seed=2)
        with served.gateway.admit(ended):
            calling = asyncio.create_task(ended.tool_exchange.call_tool("pay", {}))
            await asyncio.sleep(0)
        assert (await post(served, "/v1/chat/completions", HELLO, key=ended.token)).status_code == 401
        message = await calling
        assert (message.is_error, message.content) == (True, "the episode has ended")

    run(tmp_path, Scripted(Action(text="b")), work)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/mcp"])
def test_a_body_of_a_hundred_megabytes_is_refused(tmp_path: Path, path: str) -> None:
    async def work(served: Served) -> None:
        piece = b" " * 1_000_000

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield piece

        headers = {"Authorization": f"Bearer {served.exchange.token}", "Content-Type": "application/json"}
        headers["Accept"] = "application/json, text/event-stream"
        async with httpx.AsyncClient(headers=headers, timeout=60) as client:
            try:
                answer = await client.post(f"{served.address}{path}", content=endless())
            except httpx.TransportError:  # the gateway has answered and closed before all was sent
                return
        assert answer.status_code == 413

    run(tmp_path, Scripted(Action(text="b")), work)


def test_a_prompt_that_is_too_long_is_an_error_that_programs_know(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await served.openai.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        assert caught.value.code == "context_length_exceeded"
        assert served.exchange.events.empty()

    run(tmp_path, Scripted(PromptTooLong("9 tokens")), work)


def test_a_spent_budget_ends_the_episode(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        assert (await post(served, "/v1/chat/completions", HELLO)).status_code == 200
        refused = await post(served, "/v1/messages", {**HELLO, "max_tokens": 5})
        assert (refused.status_code, "the budget of the episode is exhausted" in refused.text) == (429, True)
        event = await served.exchange.events.get()
        assert isinstance(event, GiveUp)
        assert event.outcome is Outcome.BUDGET_EXHAUSTED

    run(tmp_path, Scripted(Action(text="b")), work, budget=Budget(turns=1))
