"""Streams of a model that thinks for long: the gateway is never silent, and the vendors' SDKs read on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from gateway_serving import TLS, Scripted, Served, run

from gymcp.agents.programs import gateway
from gymcp.errors import PolicyInfraError
from gymcp.types import Action, Decision, Message, Sampling, Tool

WAIT_S = 0.05
"""Seconds between two comments here."""
ASKED: Any = [{"role": "user", "content": "Pay 5."}]
BODIES = {
    "/v1/chat/completions": {"messages": ASKED, "stream": True},
    "/v1/responses": {"input": ASKED, "stream": True},
    "/v1/messages": {"messages": ASKED, "max_tokens": 9, "stream": True},
}


class Thinking(Scripted):
    """A policy whose answers wait until they are released, or for several comments."""

    def __init__(self, *answers: Action | Exception) -> None:
        super().__init__(*answers)
        self.released: asyncio.Event | None = None

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        if self.released is None:
            await asyncio.sleep(6 * WAIT_S)
        else:
            await self.released.wait()
        return await super().chat(messages, tools, sampling)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "KEEP_ALIVE_S", WAIT_S)


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_has_comments_before_its_answer_is_there(path: str, tmp_path: Path) -> None:
    policy = Thinking(Action(text="Done."))

    async def work(served: Served) -> None:
        policy.released, text = asyncio.Event(), ""
        headers = {"Authorization": f"Bearer {served.exchange.token}"}
        async with (
            httpx.AsyncClient(headers=headers, timeout=60, verify=TLS) as client,
            client.stream("POST", f"{served.address}{path}", json=BODIES[path]) as answer,
        ):
            assert answer.status_code == 200
            async for piece in answer.aiter_text():
                text += piece
                if text.count(": wait\n\n") >= 2:  # the model answers only then
                    policy.released.set()
        assert text.index("Done.") > text.rindex(": wait")

    run(tmp_path, policy, work)


async def stream_chat(served: Served) -> str:
    async with served.openai.chat.completions.stream(model="any", messages=ASKED) as stream:
        return str((await stream.get_final_completion()).choices[0].message.content)


async def stream_response(served: Served) -> str:
    async with served.openai.responses.stream(model="any", input=ASKED) as stream:
        return (await stream.get_final_response()).output_text


async def stream_message(served: Served) -> str:
    async with served.anthropic.messages.stream(model="any", messages=ASKED, max_tokens=9) as stream:
        return str(await stream.get_final_text())


STREAMS = [stream_chat, stream_response, stream_message]


@pytest.mark.parametrize("stream", STREAMS)
def test_the_sdks_skip_the_comments(stream: Callable[[Served], Awaitable[str]], tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        assert await stream(served) == "Done."

    run(tmp_path, Thinking(Action(text="Done.")), work)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_refusal_after_comments_is_an_error_of_the_sdk(
    stream: Callable[[Served], Awaitable[str]], tmp_path: Path
) -> None:
    async def work(served: Served) -> None:
        with pytest.raises((openai.APIError, anthropic.APIError), match="the model does not answer: it is down"):
            await stream(served)

    run(tmp_path, Thinking(PolicyInfraError("it is down")), work)
