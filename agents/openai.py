"""Models behind an OpenAI-compatible chat endpoint, at any address.

Tried again: 429, 5xx, timeouts and broken connections, with growing pauses and jitter, or as long as the endpoint asks.
Anything else is an answer, and asking again would not change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymcp.agents.connections import BROKEN, Connections, Response, Unreadable, open_connections
from gymcp.agents.prices import Price
from gymcp.agents.rendering import function
from gymcp.agents.strict_json import Malformed, load_object
from gymcp.errors import PolicyInfraError, PolicyRefused, PromptTooLong
from gymcp.types import Action, Decision, Json, Message, Sampling, Spent, Tool, ToolCall

MAX_ANSWER_BYTES = 32_000_000
_TOO_LONG = ("context_length_exceeded", "maximum context length", "context window", "too many tokens", "max_model_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    attempts: int = 6
    first_pause_s: float = 0.5
    """Doubled after every attempt; what is waited is drawn between half of it and the whole."""
    longest_pause_s: float = 60.0
    """An endpoint that asks for more is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    url: str
    """Up to and without ``/chat/completions``."""
    model: str
    key: str | None = field(default=None, repr=False)
    price: Price = field(default_factory=Price)
    timeout_s: float = 120.0
    """For one attempt, from connecting to the last byte."""
    retries: Retries = field(default_factory=Retries)
    requests_per_minute: float | None = None
    concurrency: int = 256
    """Requests in flight at a time."""


class OpenAIPolicy:
    """A `ChatPolicy`. Made by `open_endpoint`."""

    def __init__(self, endpoint: Endpoint, connections: Connections) -> None:
        self._endpoint = endpoint
        self._connections = connections
        self._who = f"model '{endpoint.model}' at {endpoint.url}"
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self._next_start = 0.0
        """On the monotonic clock: nobody asks before, because of our own pace or because the endpoint asked for it."""
        self._jitter = random.Random()

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        answer = await self._ask(request_body(self._endpoint.model, messages, tools, sampling))
        return self._decision(answer)

    async def _ask(self, body: Mapping[str, Json]) -> Mapping[str, Any]:
        # ASCII, because a lone surrogate that a model wrote has no UTF-8
        content = json.dumps(body, ensure_ascii=True, allow_nan=False).encode()
        last = ""
        for attempt in range(self._endpoint.retries.attempts):
            if attempt:
                await asyncio.sleep(self._pause(attempt))
            async with self._slots:
                await self._turn()
                try:
                    async with asyncio.timeout(self._endpoint.timeout_s):
                        response = await self._connections.post(content, most_bytes=MAX_ANSWER_BYTES)
                except (TimeoutError, *BROKEN) as error:
                    last = str(error) or f"no answer within {self._endpoint.timeout_s:g} s"
                    continue
                except Unreadable as error:
                    raise PolicyInfraError(f"{self._who}: {error}") from error
            if response.status != 429 and response.status < 500:
                return self._checked(response)
            last = f"status {response.status}: {_first_line(response.body)}"
            self._make_wait(_retry_after(response.headers.get("retry-after")), last)
        raise PolicyInfraError(
            f"{self._who}: no answer in {self._endpoint.retries.attempts} attempts; the last: {last}"
        )

    async def _turn(self) -> None:
        """Waits until a request may start; every waiter takes a later moment than the one before."""
        pace = 60.0 / self._endpoint.requests_per_minute if self._endpoint.requests_per_minute else 0.0
        while (wait := self._next_start - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(wait)
        if pace:
            self._next_start = time.monotonic() + pace

    def _make_wait(self, seconds: float | None, why: str) -> None:
        """All requests wait as long as one of them was asked to."""
        if seconds is None:
            return
        longest = self._endpoint.retries.longest_pause_s
        if seconds > longest:
            raise PolicyInfraError(f"{self._who}: asks for a pause of {seconds:g} s, more than {longest:g}: {why}")
        self._next_start = max(self._next_start, time.monotonic() + seconds)

    def _pause(self, attempt: int) -> float:
        retries = self._endpoint.retries
        whole = min(retries.longest_pause_s, retries.first_pause_s * 2.0 ** (attempt - 1))
        return whole * self._jitter.uniform(0.5, 1.0)

    def _checked(self, response: Response) -> Mapping[str, Any]:
        """The object that the endpoint answered with. Raises PolicyRefused, PromptTooLong, PolicyInfraError."""
        text = response.body.decode(errors="replace")
        if response.status in (401, 403):
            raise PolicyRefused(
                f"{self._who}: refuses the key (status {response.status}): {_first_line(response.body)}"
            )
        if response.status != 200:
            if response.status in (400, 413, 422) and any(sign in text for sign in _TOO_LONG):
                raise PromptTooLong(_first_line(response.body))
            raise PolicyRefused(f"{self._who}: status {response.status}: {_first_line(response.body)}")
        try:
            return load_object(text)
        except Malformed as error:
            raise PolicyInfraError(f"{self._who}: the answer is {error}: {_first_line(response.body)}") from error

    def _decision(self, answer: Mapping[str, Any]) -> Decision:
        try:
            message = answer["choices"][0]["message"]
            text = message.get("content") or ""
            calls = tuple(_call(call) for call in message.get("tool_calls") or ())
            usage = answer.get("usage") or {}
            prompt, completion = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
            cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
            if not isinstance(text, str):
                raise TypeError("content is not text")
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise PolicyInfraError(f"{self._who}: the answer is no chat completion: {error!r}") from error
        spent = Spent(
            model=self._endpoint.model,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cost=self._endpoint.price.of(prompt, completion, cached),
        )
        return Decision(action=Action(text=text.strip(), tool_calls=calls), spent=spent)


@contextlib.asynccontextmanager
async def open_endpoint(endpoint: Endpoint) -> AsyncIterator[OpenAIPolicy]:
    """A policy whose connections are closed on the way out. Nothing is asked yet."""
    headers = {"content-type": "application/json", "accept": "application/json"}
    if endpoint.key:
        headers["authorization"] = f"Bearer {endpoint.key}"
    url = endpoint.url.rstrip("/") + "/chat/completions"
    async with open_connections(url, headers) as connections:
        yield OpenAIPolicy(endpoint, connections)


def request_body(model: str, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> dict[str, Json]:
    """What is sent for one answer."""
    body: dict[str, Json] = {
        "model": model,
        "messages": [_message(message) for message in messages],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
    }
    if sampling.top_p < 1:
        body["top_p"] = sampling.top_p
    if sampling.top_k:
        body["top_k"] = sampling.top_k  # not OpenAI's own, but of most that are compatible
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if tools:
        body["tools"] = [function(tool) for tool in tools]
    return body


def _message(message: Message) -> dict[str, Json]:
    content = f"error: {message.content}" if message.is_error else message.content
    found: dict[str, Json] = {"role": message.role, "content": content}
    if message.tool_calls:
        found["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    return found


def _tool_call(call: ToolCall) -> dict[str, Json]:
    """What is no call goes back without arguments: endpoints refuse a conversation with arguments that are not JSON."""
    arguments = "{}" if call.problem or isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
    return {"id": call.id, "type": "function", "function": {"name": call.name or "invalid", "arguments": arguments}}


def _call(found: Mapping[str, Any]) -> ToolCall:
    """The endpoint's call; what the model wrote as arguments may be anything."""
    described = found["function"]
    name, arguments = described["name"], described.get("arguments") or "{}"
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise TypeError("a tool call's name or arguments are not text")
    try:
        return ToolCall(id=str(found.get("id")), name=name, arguments=load_object(arguments))
    except Malformed as error:
        return ToolCall(id=str(found.get("id")), name=name, arguments=arguments, problem=f"the arguments are {error}")


def _retry_after(value: str | None) -> float | None:
    """Seconds from now, of a number or a date; None where there is neither."""
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None


def _first_line(body: bytes) -> str:
    """What an endpoint said, short and on one line, as text that acts on no terminal."""
    text = " ".join(body[:2000].decode(errors="replace").split())
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= 300 else f"{shown[:300]} [...]"
