"""Answers of chat endpoints as streams: recorded as if they had come whole, with the time to the first token."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from typing import Any

import pytest
from chat_server import Answer, ChatServer, Reply, chat_server, says

from gymcp.agents.policies.http_client import Response
from gymcp.agents.policies.openai.client import Endpoint, Retries, open_endpoint
from gymcp.agents.policies.openai.stream import join_stream
from gymcp.agents.policies.prices import Price
from gymcp.errors import PolicyInfraError
from gymcp.types import Decision, Message, Sampling, Tool

HELLO = (Message(role="user", content="Hello."),)
TOOL = Tool(name="pay", input_schema={"type": "object"})
QUICK = Retries(attempts=3, first_pause_s=0.001, max_pause_s=5)
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call_part(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
    name = {"name": fields.pop("name")} if "name" in fields else {}
    return delta(tool_calls=[{"index": index, **fields, "function": {**name, "arguments": arguments}}])


def body_of(*events: Any) -> bytes:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def stream(*events: Any, status: int = 200) -> Reply:
    return Reply(status=status, body=body_of(*events), headers={"content-type": "text/event-stream; charset=utf-8"})


ANSWER = (
    delta(role="assistant", content=""),
    delta(reasoning_content="I th"),
    delta(reasoning_content="ink."),
    delta(content="I "),
    delta(content="pay."),
    call_part(0, "", id="x0", name="pay", type="function"),
    call_part(0, '{"to": '),
    call_part(0, '"bob"}'),
    call_part(1, '{"to": "ann"}', id="x1", name="pay"),
    delta(finish="tool_calls"),
    {"choices": [], "usage": USAGE},
    "[DONE]",
)
"""The events of an answer with reasoning, text and two calls."""


def ask(server: ChatServer, *, stream: bool = True, times: int = 1) -> list[Decision]:
    price = Price(prompt=2, completion=10)
    to = Endpoint(url=server.url, model="m", retries=QUICK, timeout_s=20, price=price, stream=stream)

    async def main() -> list[Decision]:
        async with open_endpoint(to) as policy:
            return [await policy.chat(HELLO, (TOOL,), Sampling()) for _ in range(times)]

    return asyncio.run(main())


def always(reply: Reply) -> Answer:
    return lambda number, body: reply


def test_a_streamed_answer_is_recorded_as_the_same_answer_whole() -> None:
    whole = says("I pay.", ("pay", '{"to": "bob"}'), ("pay", '{"to": "ann"}'))
    thought = json.loads(whole.body)
    thought["choices"][0]["message"]["reasoning_content"] = "I think."
    with chat_server(always(replace(whole, body=json.dumps(thought).encode()))) as server:
        (expected,) = ask(server, stream=False)
    with chat_server(always(stream(*ANSWER))) as server:
        (found,) = ask(server)
    assert replace(found, request_times=None) == replace(expected, request_times=None)
    assert found.reasoning == "I think."
    assert server.requests[0]["stream"] is True
    assert server.requests[0]["stream_options"] == {"include_usage": True}


def test_a_stream_tells_the_time_to_the_first_token_and_a_whole_answer_does_not() -> None:
    with chat_server(always(stream(*ANSWER))) as server:
        times = ask(server)[0].request_times
    assert times is not None
    assert times.first_token_s is not None
    assert 0 < times.first_token_s <= times.request_s
    with chat_server(always(says("Hello."))) as server:
        times = ask(server, stream=False)[0].request_times
    assert times is not None
    assert times.first_token_s is None
    assert times.request_s > 0
    assert "stream" not in server.requests[0]


def test_the_first_token_is_the_first_event_that_holds_one() -> None:
    """The role comes first and is no token; the time is that of the piece in which the event was complete."""
    role, text = body_of(ANSWER[0]), body_of(delta(content="Hi."), delta(finish="stop"), "[DONE]")
    body = role + text
    arrivals = ((len(role), 0.5), (len(role) + 4, 1.0), (len(body) - 20, 2.0), (len(body), 3.0))
    headers = {"content-type": "text/event-stream"}
    _, first_token_s = join_stream(Response(status=200, headers=headers, body=body, arrivals=arrivals))
    assert first_token_s == 2.0
    assert join_stream(Response(status=200, headers=headers, body=body))[1] is None


def test_the_time_of_a_request_leaves_out_earlier_attempts() -> None:
    """The endpoint asks for a pause after its first answer, which is part of the decision and not of the request."""
    pause_s = 0.2

    def answer(number: int, body: dict[str, Any]) -> Reply:
        return says("Hello.") if number else Reply(status=429, headers={"retry-after": str(pause_s)})

    started = time.perf_counter()
    with chat_server(answer) as server:
        times = ask(server, stream=False)[0].request_times
    assert times is not None
    assert time.perf_counter() - started - times.request_s >= pause_s


@pytest.mark.parametrize(
    "refusal",
    ["stream_options is not supported", "Streaming is not supported with tools", "Unknown parameter: 'stream'"],
)
def test_an_endpoint_that_refuses_streams_is_asked_for_whole_answers(
    refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(number: int, body: dict[str, Any]) -> Reply:
        return Reply(status=400, body=json.dumps({"error": refusal}).encode()) if "stream" in body else says("Hello.")

    with chat_server(answer) as server, caplog.at_level(logging.WARNING):
        found = ask(server, times=2)
    assert [each.action.text for each in found] == ["Hello."] * 2
    assert ["stream" in body for body in server.requests] == [True, False, False]
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "refuses to stream, so answers are asked for whole, without the time to the first token"
    ]


def test_a_stream_without_usage_is_asked_for_again_whole_because_its_tokens_count() -> None:
    def answer(number: int, body: dict[str, Any]) -> Reply:
        return stream(*ANSWER[:-2], "[DONE]") if "stream" in body else says("Hello.")

    with chat_server(answer) as server:
        found = ask(server, times=2)
    assert [each.spent and each.spent.completion_tokens for each in found] == [5, 5]
    assert ["stream" in body for body in server.requests] == [True, False, False]


def test_an_endpoint_that_ignores_the_wish_for_a_stream_is_read_as_ever() -> None:
    with chat_server(always(says("Hello."))) as server:
        (found,) = ask(server)
    assert found.action.text == "Hello."
    assert found.request_times is not None
    assert found.request_times.first_token_s is None
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (ANSWER[:5], "the stream ended before the answer did"),
        ((delta(content="I"), "{not json"), "the answer is"),
        ((delta(content="I"), "[1]"), "the answer is"),
        (({"error": {"message": "out of memory"}},), "answers with an error: out of memory"),
        ((delta(content="I"), {"choices": 3}), "the answer is no chat completion"),
        ((delta(tool_calls=["pay"]), delta(finish="stop")), "the answer is no chat completion"),
        ((call_part(0, "{}", name=3), delta(finish="stop")), "the answer is no chat completion"),
        ((), "the stream ended before the answer did"),
    ],
)
def test_a_broken_stream_is_a_failure_of_the_endpoint(events: tuple[Any, ...], why: str) -> None:
    with chat_server(always(stream(*events))) as server, pytest.raises(PolicyInfraError, match=why) as caught:
        ask(server)
    assert "\n" not in str(caught.value)
