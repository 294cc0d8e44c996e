"""Models behind an OpenAI-compatible chat endpoint, at any address.

Tried again: 429, 5xx, timeouts and broken connections, with growing pauses and jitter, or as long as the endpoint asks.
Anything else is an answer, and asking again would not change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import logging
import math
import random
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gymcp.agents.policies.http_client import Broken, Connections, Response, Unreadable, open_connections
from gymcp.agents.policies.openai.wire_format import Writer, decision_of, is_too_long, request_body, words_of
from gymcp.agents.policies.prices import Price
from gymcp.agents.tool_calls.strict_json import Malformed, load_object
from gymcp.errors import PolicyInfraError, PolicyRefused, PromptTooLong
from gymcp.mcp_servers.redaction import MIN_SECRET_CHARS
from gymcp.types import Decision, Json, Message, Sampling, Tool

PATH = "/chat/completions"
MODELS = "/models"
MAX_ANSWER_BYTES = 32_000_000
ANY_ANSWER_S = 20.0
"""For the first word of all, which takes no model: whoever is silent for longer is no endpoint, or not yet."""
TELL_EVERY_S = 30.0
"""How often the log says at most that an endpoint is asked again."""

log = logging.getLogger(__name__)


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
        self._writer = Writer()
        self._jitter = random.Random()
        self._length = "max_tokens"
        """How the endpoint calls the bound on an answer."""
        self._takes_seeds = True
        self._told = -math.inf

    async def check_answers(self) -> None:
        """Asks for the list of models, once; any answer will do, a refusal too, and so will a broken connection, which
        the requests themselves try again. Raises PolicyInfraError where nothing is said."""
        limit = min(ANY_ANSWER_S, self._endpoint.timeout_s)
        try:
            async with asyncio.timeout(limit):
                await self._connections.ask("GET", MODELS, most_bytes=MAX_ANSWER_BYTES)
        except TimeoutError as error:
            raise PolicyInfraError(
                f"{self._who}: says nothing: no answer to GET {MODELS} within {limit:g} s; is it"
                " still starting, or is something else at that address?"
            ) from error
        except (Broken, Unreadable) as error:
            log.debug("%s: no list of models: %s", self._who, error)

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        endpoint = self._endpoint
        while True:
            body = self._as_it_wants(request_body(endpoint.model, messages, sampling))
            try:
                answer = await self._ask(self._writer.request(body, tools))
                break
            except PolicyRefused as error:
                if not self._learns(body, str(error)):
                    raise
        try:
            return decision_of(answer, endpoint.model, endpoint.price)
        except ValueError as error:
            raise PolicyInfraError(f"{self._who}: the answer is no chat completion: {error}") from error

    async def _ask(self, content: bytes) -> Mapping[str, Any]:
        last = ""
        for attempt in range(self._endpoint.retries.attempts):
            if attempt:
                self._tell(f"{last}; asked again, attempt {attempt + 1} of {self._endpoint.retries.attempts}")
                await asyncio.sleep(self._pause(attempt))
            async with self._slots:
                await self._turn()
                try:
                    async with asyncio.timeout(self._endpoint.timeout_s):
                        response = await self._connections.ask("POST", PATH, content, most_bytes=MAX_ANSWER_BYTES)
                except (TimeoutError, Broken) as error:
                    last = str(error) or f"no answer within {self._endpoint.timeout_s:g} s"
                    continue
                except Unreadable as error:
                    raise PolicyInfraError(f"{self._who}: {error}") from error
            response = self._without_key(response)
            if response.status != 429 and response.status < 500:
                return self._checked(response)
            last = f"status {response.status}: {words_of(response.body)}"
            if b"insufficient_quota" in response.body:  # OpenAI's word for an account without money
                raise PolicyRefused(f"{self._who}: {last}")
            self._make_wait(_retry_after(response.headers.get("retry-after")), last)
        raise PolicyInfraError(
            f"{self._who}: no answer in {self._endpoint.retries.attempts} attempts; the last: {last}"
        )

    def _without_key(self, response: Response) -> Response:
        """Removes the key from an answer that is recorded: some endpoints repeat the key that they refuse."""
        key = (self._endpoint.key or "").encode()
        if len(key) < MIN_SECRET_CHARS or key not in response.body:
            return response
        return replace(response, body=response.body.replace(key, b"(the key)"))

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

    def _tell(self, what: str) -> None:
        """That the endpoint keeps everybody waiting is said, but not by each who waits."""
        now = time.monotonic()
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            log.warning("%s: %s", self._who, what)

    def _pause(self, attempt: int) -> float:
        retries = self._endpoint.retries
        whole = min(retries.longest_pause_s, retries.first_pause_s * 2.0 ** (attempt - 1))
        return whole * self._jitter.uniform(0.5, 1.0)

    def _checked(self, response: Response) -> Mapping[str, Any]:
        """The object that the endpoint answered with. Raises PolicyRefused, PromptTooLong, PolicyInfraError."""
        if response.status == 200:
            try:
                answer = load_object(response.body.decode(errors="replace"))
            except Malformed as error:
                raise PolicyInfraError(f"{self._who}: the answer is {error}: {words_of(response.body)}") from error
            if answer.get("error") and not answer.get("choices"):
                raise PolicyInfraError(f"{self._who}: answers with an error: {words_of(response.body)}")
            return answer
        what = f"status {response.status}"
        said = words_of(response.body)
        if response.status in (401, 403):
            raise PolicyRefused(f"{self._who}: refuses the key ({what}): {said}")
        if 300 <= response.status < 400:
            there = words_of(response.headers.get("location", "another address").encode())
            raise PolicyRefused(f"{self._who}: {what}: it has moved to {there}; name that address")
        if response.status in (400, 413, 422) and is_too_long(response.body.decode(errors="replace")):
            raise PromptTooLong(said)
        if response.status == 404:
            said += f" (asked was {self._endpoint.url}{PATH})"
        raise PolicyRefused(f"{self._who}: {what}: {said}")

    def _learns(self, body: Mapping[str, Json], why: str) -> bool:
        """Whether the endpoint wants the request in another way, which all further ones are sent in."""
        if "max_tokens" in body and "max_completion_tokens" in why:
            self._length = "max_completion_tokens"  # OpenAI's newer models
            return True
        if "seed" in body and re.search(r"\bseed\b", why):
            self._takes_seeds = False
            log.warning("%s: takes no seed, so the same answers cannot be drawn again", self._who)
            return True
        return False

    def _as_it_wants(self, body: dict[str, Json]) -> dict[str, Json]:
        body[self._length] = body.pop("max_tokens")
        if not self._takes_seeds:
            body.pop("seed", None)
        return body


@contextlib.asynccontextmanager
async def open_endpoint(endpoint: Endpoint) -> AsyncIterator[OpenAIPolicy]:
    """A policy whose connections are closed on the way out. Nothing is asked yet."""
    headers = {"content-type": "application/json", "accept": "application/json"}
    if endpoint.key:
        headers["authorization"] = f"Bearer {endpoint.key}"
    async with open_connections(endpoint.url, headers) as connections:
        yield OpenAIPolicy(endpoint, connections)


def _retry_after(value: str | None) -> float | None:
    """Seconds from now, of a number or a date; None where there is neither."""
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None
