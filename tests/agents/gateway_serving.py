"""A gateway with one live episode, whose model gives prepared answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai

from gymcp.agents.policies.models import ChatModel
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.gateway import Gateway, open_gateway
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.types import (
    Action,
    Decision,
    Message,
    ModelUsage,
    Observation,
    Sampled,
    Sampling,
    Tool,
    ToolCall,
)

PAY = Tool(
    name="pay",
    description="Pay an amount.",
    input_schema={"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
)
CALL = ToolCall(id="c", name="pay", arguments={"amount": 5})
USAGE = ModelUsage(model="stub", prompt_tokens=11, completion_tokens=7)


TLS = httpx.create_ssl_context()
"""Takes tens of milliseconds, and every client would make its own."""


class Scripted:
    """A chat policy that gives prepared answers, and keeps what it was asked."""

    def __init__(self, *answers: Action | Exception, finish: str = "stop") -> None:
        self._answers = itertools.cycle(answers)
        self._sampled = (
            Sampled(prompt_ids=(1,), ids=(2,), logprobs=(0.0,), versions=(("0", 0, 1),), finish="length")
            if finish == "length"
            else None
        )
        self.messages: list[tuple[Message, ...]] = []
        self.tools: list[tuple[Tool, ...]] = []
        self.sampling: list[Sampling] = []

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        self.messages.append(tuple(messages))
        self.tools.append(tuple(tools))
        self.sampling.append(sampling)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return Decision(action=answer, spent=USAGE, sampled=self._sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A gateway with one live episode."""

    gateway: Gateway
    exchange: Exchange
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"


@asynccontextmanager
async def serve(folder: Path, policy: Scripted, **settings: Any) -> AsyncIterator[Served]:
    async with open_gateway(folder, "stub") as gateway:
        model = ChatModel(name="stub", policy=policy)
        exchange = Exchange(model, ProgramSettings(argv=("true",), **settings), seed=1)
        exchange.observe(Observation(messages=(), tools=(PAY,)))
        address = f"http://127.0.0.1:{gateway.port}"
        async with (
            openai.AsyncOpenAI(
                base_url=f"{address}/v1",
                api_key=exchange.token,
                max_retries=0,
                http_client=openai.DefaultAsyncHttpxClient(verify=TLS),
            ) as first,
            anthropic.AsyncAnthropic(
                base_url=address,
                api_key=exchange.token,
                max_retries=0,
                http_client=anthropic.DefaultAsyncHttpxClient(verify=TLS),
            ) as second,
        ):
            with gateway.admit(exchange):
                yield Served(gateway=gateway, exchange=exchange, openai=first, anthropic=second)


def run(folder: Path, policy: Scripted, work: Callable[[Served], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with serve(folder, policy, **settings) as served:
            await asyncio.wait_for(work(served), 60)

    asyncio.run(main())


CALLS = Action(text="I pay.", tool_calls=(CALL, ToolCall(id="d", name="pay", arguments={"amount": 6})))
FUNCTION: Any = {
    "type": "function",
    "function": {"name": "pay", "description": "Pay an amount.", "parameters": dict(PAY.input_schema)},
}
FLAT: Any = {"type": "function", "name": "pay", "description": "Pay an amount.", "parameters": dict(PAY.input_schema)}
CUSTOM: Any = {"name": "pay", "description": "Pay an amount.", "input_schema": dict(PAY.input_schema)}


def post(served: Served, path: str, body: Any, key: str | None = None) -> Awaitable[httpx.Response]:
    headers = {"Authorization": f"Bearer {served.exchange.token if key is None else key}"}
    content = body if isinstance(body, bytes) else None

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(headers=headers, timeout=60, verify=TLS) as client:
            json = None if content is not None else body
            return await client.post(f"{served.address}{path}", json=json, content=content)

    return send()
