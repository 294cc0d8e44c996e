"""Models behind an OpenAI-compatible chat endpoint, at any address.

A request is tried again after 429, 5xx, a connection that does not open or breaks, with exponential backoff and jitter,
or after the pause that the endpoint asks for. Anything else is an answer that another attempt would not change. Once a
request is sent, waiting for its answer is the agent's own time: an answer that is too late is not asked for again.

With `Endpoint.stream`, answers come token by token, which shows when the first one comes. It is not the default: every
token is then an event, so that an answer of 200 tokens takes some 15 ms of CPU instead of 0.2 ms
(benchmarks/streaming.py), and endpoints differ in what they leave out of streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import logging
import math
import random
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gymcp.agents.policies.http_client import (
    HttpClient,
    LateAnswer,
    NoAnswer,
    Response,
    UnreadableAnswer,
    open_http_client,
)
from gymcp.agents.policies.openai.stream import STREAM_KEYS, is_stream, join_stream
from gymcp.agents.policies.openai.wire_format import (
    RequestWriter,
    parse_decision,
    read_error_text,
    request_body,
    says_prompt_too_long,
)
from gymcp.agents.policies.prices import Price
from gymcp.agents.tool_calls.strict_json import Malformed, load_object
from gymcp.errors import AnswerTimeout, PolicyInfraError, PolicyRefused, PromptTooLong
from gymcp.mcp_servers.redaction import MIN_SECRET_CHARS
from gymcp.types import Decision, Json, Message, RequestTimes, Sampling, Tool

CHAT_PATH = "/chat/completions"
MODELS_PATH = "/models"
MAX_ANSWER_BYTES = 32_000_000
"""Maximum number of bytes of an answer."""
FIRST_ANSWER_TIMEOUT_S = 20.0
"""Seconds for the first answer, which needs no model: an address silent for longer has no endpoint, or not yet."""
WARN_EVERY_S = 30.0
"""Minimum seconds between two warnings that requests to an endpoint are tried again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The attempts at one request and the pauses between them."""

    attempts: int = 6
    """Maximum number of attempts, the first included."""
    first_pause_s: float = 0.5
    """Maximum seconds before the second attempt, doubled for every further one. A pause is at least half of it."""
    max_pause_s: float = 60.0
    """Maximum seconds of a pause; an endpoint that asks for a longer one is not asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a model and the limits for requests to it."""

    url: str
    """Address without ``/chat/completions``."""
    model: str
    key: str | None = field(default=None, repr=False)
    price: Price = field(default_factory=Price)
    timeout_s: float | None = None
    """Maximum seconds from sending a request to the last byte of its answer; None: the asking agent has a limit."""
    retries: Retries = field(default_factory=Retries)
    requests_per_minute: float | None = None
    """Maximum number of requests per minute; None for no limit."""
    concurrency: int = 256
    """Maximum number of requests in flight."""
    stream: bool = False
    """True to ask for answers as streams, which shows the time to the first token."""


class OpenAIPolicy:
    """A `ChatPolicy`. Made by `open_endpoint`."""

    def __init__(self, endpoint: Endpoint, http: HttpClient) -> None:
        self._endpoint = endpoint
        self._http = http
        self._who = f"model '{endpoint.model}' at {endpoint.url}"
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self._next_start = 0.0
        """Time on the monotonic clock before which no request starts: due to the rate, or at the endpoint's request."""
        self._writer = RequestWriter()
        self._jitter = random.Random()
        self._length_key = "max_tokens"
        """The endpoint's name for the maximum number of tokens of an answer."""
        self._takes_seeds = True
        self._streams = endpoint.stream
        """True to ask for streams; False once the endpoint has refused one, or sent one without usage."""
        self._last_warning = -math.inf

    async def check_reachable(self) -> None:
        """Ask for the list of models once. Raises PolicyInfraError if the endpoint stays silent.

        Any answer is fine, also a refusal, and so is a broken connection, because later requests retry that.
        """
        limit = min(FIRST_ANSWER_TIMEOUT_S, self._endpoint.timeout_s or math.inf)
        try:
            async with asyncio.timeout(limit):
                await self._http.request("GET", MODELS_PATH, max_bytes=MAX_ANSWER_BYTES)
        except TimeoutError as error:
            raise PolicyInfraError(
                f"{self._who}: says nothing: no answer to GET {MODELS_PATH} within {limit:g} s; is it"
                " still starting, or is something else at that address?"
            ) from error
        except (NoAnswer, UnreadableAnswer) as error:
            log.debug("%s: no list of models: %s", self._who, error)

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        endpoint = self._endpoint
        while True:
            body = self._apply_dialect(request_body(endpoint.model, messages, sampling))
            try:
                answer, times = await self._request(self._writer.write(body, tools))
            except PolicyRefused as error:
                if not self._adapt_to(body, str(error)):
                    raise
                continue
            if "stream" not in body or answer.get("usage"):
                break
            self._stop_streaming("sends no usage with a stream")
        try:
            decision = parse_decision(answer, endpoint.model, endpoint.price)
        except ValueError as error:
            raise PolicyInfraError(f"{self._who}: the answer is no chat completion: {error}") from error
        return replace(decision, request_times=times)

    async def _request(self, content: bytes) -> tuple[Mapping[str, Any], RequestTimes]:
        """The endpoint's answer, an object, and the times of the attempt that brought it.

        Raises PolicyInfraError once all attempts have failed, AnswerTimeout, PolicyRefused, PromptTooLong.
        """
        last, timed = "", self._streams
        for attempt in range(self._endpoint.retries.attempts):
            if attempt:
                self._warn(f"{last}; asked again, attempt {attempt + 1} of {self._endpoint.retries.attempts}")
                await asyncio.sleep(self._pause_s(attempt))
            async with self._slots:
                await self._wait_for_start()
                sent = time.perf_counter()
                try:
                    response = await self._http.request(
                        "POST",
                        CHAT_PATH,
                        content,
                        max_bytes=MAX_ANSWER_BYTES,
                        timed=timed,
                        timeout_s=self._endpoint.timeout_s,
                    )
                except LateAnswer as error:
                    raise AnswerTimeout(f"{self._who}: {error}") from error
                except NoAnswer as error:
                    last = str(error)
                    continue
                except UnreadableAnswer as error:
                    raise PolicyInfraError(f"{self._who}: {error}") from error
                request_s = time.perf_counter() - sent
            response = self._without_key(response)
            if response.status != 429 and response.status < 500:
                answer, first_token_s = self._read_answer(response)
                return answer, RequestTimes(request_s=request_s, first_token_s=first_token_s)
            last = f"status {response.status}: {read_error_text(response.body)}"
            if b"insufficient_quota" in response.body:  # OpenAI's word for an account without money
                raise PolicyRefused(f"{self._who}: {last}")
            self._delay_all(_retry_after(response.headers.get("retry-after")), last)
        raise PolicyInfraError(
            f"{self._who}: no answer in {self._endpoint.retries.attempts} attempts; the last: {last}"
        )

    def _without_key(self, response: Response) -> Response:
        """The answer without the key: answers are recorded, and some endpoints repeat a key that they refuse."""
        key = (self._endpoint.key or "").encode()
        if len(key) < MIN_SECRET_CHARS or key not in response.body:
            return response
        return replace(response, body=response.body.replace(key, b"(the key)"))

    async def _wait_for_start(self) -> None:
        """Wait until a request may start; each waiting request starts later than the one before."""
        interval_s = 60.0 / self._endpoint.requests_per_minute if self._endpoint.requests_per_minute else 0.0
        while (wait_s := self._next_start - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(wait_s)
        if interval_s:
            self._next_start = time.monotonic() + interval_s

    def _delay_all(self, seconds: float | None, why: str) -> None:
        """Make all requests wait for the seconds that the endpoint asked one of them to wait."""
        if seconds is None:
            return
        max_pause_s = self._endpoint.retries.max_pause_s
        if seconds > max_pause_s:
            raise PolicyInfraError(f"{self._who}: asks for a pause of {seconds:g} s, more than {max_pause_s:g}: {why}")
        self._next_start = max(self._next_start, time.monotonic() + seconds)

    def _warn(self, what: str) -> None:
        """Log a warning, at most one every `WARN_EVERY_S` seconds for all requests together."""
        now = time.monotonic()
        if now - self._last_warning >= WARN_EVERY_S:
            self._last_warning = now
            log.warning("%s: %s", self._who, what)

    def _pause_s(self, attempt: int) -> float:
        retries = self._endpoint.retries
        max_s = min(retries.max_pause_s, retries.first_pause_s * 2.0 ** (attempt - 1))
        return max_s * self._jitter.uniform(0.5, 1.0)

    def _read_answer(self, response: Response) -> tuple[Mapping[str, Any], float | None]:
        """The object in the endpoint's answer, and the seconds until its first token if it was streamed.

        Raises PolicyRefused, PromptTooLong, PolicyInfraError.
        """
        if response.status == 200:
            first_token_s: float | None = None
            try:
                if is_stream(response):
                    answer, first_token_s = join_stream(response)
                else:
                    answer = load_object(response.body.decode(errors="replace"))
            except Malformed as error:
                raise PolicyInfraError(
                    f"{self._who}: the answer is {error}: {read_error_text(response.body)}"
                ) from error
            except (ValueError, TypeError, AttributeError) as error:
                raise PolicyInfraError(f"{self._who}: the answer is no chat completion: {error}") from error
            if answer.get("error") and not answer.get("choices"):
                said = read_error_text(json.dumps(answer).encode())
                raise PolicyInfraError(f"{self._who}: answers with an error: {said}")
            return answer, first_token_s
        status = f"status {response.status}"
        text = read_error_text(response.body)
        if response.status in (401, 403):
            raise PolicyRefused(f"{self._who}: refuses the key ({status}): {text}")
        if 300 <= response.status < 400:
            location = read_error_text(response.headers.get("location", "another address").encode())
            raise PolicyRefused(f"{self._who}: {status}: it has moved to {location}; name that address")
        if response.status in (400, 413, 422) and says_prompt_too_long(response.body.decode(errors="replace")):
            raise PromptTooLong(text)
        if response.status == 404:
            text += f" (asked was {self._endpoint.url}{CHAT_PATH})"
        raise PolicyRefused(f"{self._who}: {status}: {text}")

    def _adapt_to(self, body: Mapping[str, Json], why: str) -> bool:
        """True if the refusal shows a dialect that the body is not written in yet; all later requests use it."""
        if "max_tokens" in body and "max_completion_tokens" in why:
            self._length_key = "max_completion_tokens"  # OpenAI's newer models
            return True
        if "seed" in body and re.search(r"\bseed\b", why):
            self._takes_seeds = False
            log.warning("%s: takes no seed, so the same answers cannot be drawn again", self._who)
            return True
        if "stream" in body and "stream" in why.lower():
            self._stop_streaming("refuses to stream")
            return True
        return False

    def _stop_streaming(self, why: str) -> None:
        """Ask for whole answers from now on."""
        if self._streams:
            self._streams = False
            log.warning("%s: %s, so answers are asked for whole, without the time to the first token", self._who, why)

    def _apply_dialect(self, body: dict[str, Json]) -> dict[str, Json]:
        body[self._length_key] = body.pop("max_tokens")
        if not self._takes_seeds:
            body.pop("seed", None)
        return {**body, **STREAM_KEYS} if self._streams else body


@contextlib.asynccontextmanager
async def open_endpoint(endpoint: Endpoint) -> AsyncIterator[OpenAIPolicy]:
    """The policy of this endpoint, which is not asked yet; connections are closed on exit."""
    headers = {"content-type": "application/json", "accept": "application/json"}
    if endpoint.key:
        headers["authorization"] = f"Bearer {endpoint.key}"
    async with open_http_client(endpoint.url, headers) as http:
        yield OpenAIPolicy(endpoint, http)


def _retry_after(value: str | None) -> float | None:
    """The seconds to wait, from a ``Retry-After`` header: a number or a date; None if it is neither."""
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None
