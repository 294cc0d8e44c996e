"""Chat endpoints over a real socket: good ones, bad ones, and ones that recover."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace

import pytest
from chat_server import Answer, ChatServer, Reply, chat_server, says
from free_ports import refusing_port

from gymcp.agents.policies.openai.client import Endpoint, Retries, open_endpoint
from gymcp.agents.policies.prices import Price
from gymcp.agents.policies.text_tool_calls import TextToolCallPolicy
from gymcp.errors import AnswerTimeout, PolicyInfraError, PolicyRefused, PromptTooLong
from gymcp.protocols import ChatPolicy
from gymcp.types import Action, Decision, Json, Message, Sampling, Tool, ToolCall

HELLO = (Message(role="user", content="Hello."),)
TOOL = Tool(name="pay", description="Pay.", input_schema={"type": "object", "properties": {"to": {"type": "string"}}})
QUICK = Retries(attempts=4, first_pause_s=0.001, max_pause_s=5)


def endpoint(server: ChatServer) -> Endpoint:
    return Endpoint(url=server.url, model="m", retries=QUICK, timeout_s=20)


def ask(
    to: Endpoint,
    messages: tuple[Message, ...] = HELLO,
    tools: tuple[Tool, ...] = (),
    sampling: Sampling | None = None,
    templated: bool = False,
) -> Decision:
    async def main() -> Decision:
        async with open_endpoint(to) as policy:
            asked: ChatPolicy = TextToolCallPolicy(policy) if templated else policy
            return await asked.chat(messages, tools, sampling or Sampling())

    return asyncio.run(main())


def in_turn(*replies: Reply) -> Answer:
    """These replies in turn; the last one is repeated."""
    return lambda number, body: replies[min(number, len(replies) - 1)]


def test_an_answer_has_text_calls_and_a_price() -> None:
    with chat_server(in_turn(says("I pay.", ("pay", '{"to": "bob"}'), prompt=1000, completion=100))) as server:
        to = replace(endpoint(server), key="secret", price=Price(prompt=2, completion=10))
        sampling = Sampling(max_tokens=7, temperature=0.5, top_p=0.9, stop=("x",), seed=3)
        decided = ask(to, tools=(TOOL,), sampling=sampling)
    assert decided.action == Action(text="I pay.", tool_calls=(ToolCall(id="x0", name="pay", arguments={"to": "bob"}),))
    assert decided.spent is not None
    assert (decided.spent.model, decided.spent.prompt_tokens, decided.spent.completion_tokens) == ("m", 1000, 100)
    assert decided.spent.cost == pytest.approx(0.003)
    assert server.keys == ["Bearer secret"]
    (body,) = server.requests
    assert body["messages"] == [{"role": "user", "content": "Hello."}]
    assert {key: body[key] for key in ("model", "max_tokens", "temperature", "top_p", "stop", "seed")} == {
        "model": "m", "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "stop": ["x"], "seed": 3,
    }  # fmt: skip
    assert body["tools"][0]["function"]["name"] == "pay"


def test_the_key_is_not_in_the_representation_of_an_endpoint() -> None:
    assert "secret" not in repr(Endpoint(url="http://x", model="m", key="secret"))


def test_a_key_repeated_by_the_endpoint_is_removed() -> None:
    key = "sk-0123456789"
    refusal = in_turn(Reply(status=401, body=f"wrong key: {key}".encode()))
    with chat_server(refusal) as server, pytest.raises(PolicyRefused, match=r"wrong key: \(the key\)$"):
        ask(replace(endpoint(server), key=key))
    with chat_server(in_turn(says(f"You are {key}."))) as server:
        assert ask(replace(endpoint(server), key=key)).action.text == "You are (the key)."


GOOD = says("Hi.")


@pytest.mark.parametrize(
    "bad",
    [
        Reply(status=500, body=b"oops"),
        Reply(status=503),
        Reply(status=429, body=b"slow down"),
        Reply(status=429, headers={"Retry-After": "0"}),
        Reply(status=429, headers={"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}),
        Reply(body=GOOD.body[:30], promised=len(GOOD.body)),
        Reply(silent=True),
    ],
    ids=["500", "503", "429", "429 after", "429 date", "half a stream", "nothing"],
)
def test_a_transient_failure_is_tried_again(bad: Reply) -> None:
    with chat_server(in_turn(bad, bad, GOOD)) as server:
        assert ask(endpoint(server)).action.text == "Hi."
    assert len(server.requests) == 3


@pytest.mark.parametrize("bad", [Reply(status=500, body=b"oops"), Reply(silent=True), Reply(status=429)])
def test_a_persistent_failure_is_given_up(bad: Reply) -> None:
    with chat_server(in_turn(bad)) as server, pytest.raises(PolicyInfraError, match="no answer in 4 attempts"):
        ask(endpoint(server))
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("bad", "kind", "why"),
    [
        (Reply(status=401, body=b'{"error": "bad key"}'), PolicyRefused, "refuses the key .*bad key"),
        (Reply(status=404, body=b"no such model"), PolicyRefused, "status 404: no such model"),
        (Reply(status=400, body=b"tools\x1b[2J are unsupported"), PolicyRefused, r"status 400: tools\?\[2J"),
        (Reply(status=400, body=b"maximum context length is 2048"), PromptTooLong, "2048"),
        (Reply(body=b"<html>"), PolicyInfraError, "not JSON.*<html>"),
        (Reply(body=b"[" * 5000), PolicyInfraError, "nested more than"),
        (Reply(body=b"{}"), PolicyInfraError, "no chat completion"),
        (Reply(body=b'{"choices": [{"message": {"content": 5}}]}'), PolicyInfraError, "no chat completion"),
        (Reply(body=b'{"choices": [{"message": {"tool_calls": [7]}}]}'), PolicyInfraError, "no chat completion"),
        (Reply(body=b"zz", headers={"content-encoding": "gzip"}), PolicyInfraError, "cannot be read"),
        (Reply(body=b'{"choices": []}'), PolicyInfraError, "no chat completion"),
        (says(prompt=-5), PolicyInfraError, "-5 is no number of tokens"),
        (says(completion=10**300), PolicyInfraError, "is no number of tokens"),
        (Reply(body=b'{"error": {"message": "overloaded"}}'), PolicyInfraError, "with an error: overloaded$"),
        (Reply(status=307, headers={"location": "https://b/v1"}), PolicyRefused, "moved to https://b/v1; name that"),
        (
            Reply(status=404, body=b'{"detail": "Not Found"}'),
            PolicyRefused,
            r"Not Found \(asked was http.*/v1/chat/com",
        ),
        (Reply(status=429, body=b'{"error": {"code": "insufficient_quota"}}'), PolicyRefused, "insufficient_quota"),
        (Reply(status=400, body=b'{"error": {"message": "Prompt is too long: 9 > 8"}}'), PromptTooLong, "^Prompt is"),
    ],
)
def test_a_final_answer_is_not_tried_again(bad: Reply, kind: type[PolicyInfraError], why: str) -> None:
    with chat_server(in_turn(bad)) as server, pytest.raises(kind, match=why):
        ask(endpoint(server))
    assert len(server.requests) == 1


def test_variants_of_the_answer_format_are_understood() -> None:
    message = {
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I pay."}],
        "tool_calls": [{"id": "x", "function": {"name": "pay", "arguments": {"to": "bob"}}}],
    }
    with chat_server(in_turn(Reply(body=json.dumps({"choices": [{"message": message}]}).encode()))) as server:
        action = ask(endpoint(server)).action
    assert action == Action(text="I pay.", tool_calls=(ToolCall(id="x", name="pay", arguments={"to": "bob"}),))


def test_requests_adapt_to_the_dialect_of_the_endpoint() -> None:
    def picky(number: int, body: dict[str, Json]) -> Reply:
        if "max_tokens" in body:
            said = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return Reply(status=400, body=json.dumps({"error": {"message": said}}).encode())
        if "seed" in body:
            why = {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"]}]}
            return Reply(status=422, body=json.dumps({"message": why}).encode())
        return GOOD

    async def twice(to: Endpoint) -> None:
        async with open_endpoint(to) as policy:
            for _ in range(2):
                assert (await policy.chat(HELLO, (), Sampling(max_tokens=7, seed=3))).action.text == "Hi."

    with chat_server(picky) as server:
        asyncio.run(twice(endpoint(server)))
    assert [body.get("max_completion_tokens") for body in server.requests] == [None, 7, 7, 7]
    assert ["seed" in body for body in server.requests] == [True, True, False, False]


def test_retries_of_many_requests_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with chat_server(in_turn(Reply(status=503, body=b"busy"), Reply(silent=True), GOOD)) as server:
        ask(endpoint(server))
    (said,) = caplog.messages
    assert said.endswith("status 503: busy; asked again, attempt 2 of 4")


def test_an_endpoint_that_is_down_is_named() -> None:
    with refusing_port() as port:
        gone = ChatServer(url=f"http://127.0.0.1:{port}/v1")
        with pytest.raises(PolicyInfraError, match=rf"model 'm' at {gone.url}: no answer in 4 attempts"):
            ask(endpoint(gone))


def test_an_answer_that_is_too_late_is_not_asked_for_again() -> None:
    hold = threading.Event()

    def never(number: int, body: object) -> Reply:
        hold.wait(20)
        return GOOD

    with chat_server(never) as server:
        try:
            with pytest.raises(AnswerTimeout, match=r"no answer within 0\.2 s"):
                ask(replace(endpoint(server), timeout_s=0.2))
        finally:
            hold.set()
        assert len(server.requests) == 1


def test_a_requested_pause_that_is_too_long_is_an_error() -> None:
    busy = Reply(status=429, headers={"Retry-After": "3600"}, body=b"quota")
    with chat_server(in_turn(busy)) as server, pytest.raises(PolicyInfraError, match=r"a pause of 3600 s.*quota"):
        ask(endpoint(server))


def test_a_pause_requested_for_one_request_delays_all() -> None:
    asked: list[float] = []

    def answer(number: int, body: object) -> Reply:
        asked.append(time.monotonic())
        return Reply(status=429, headers={"Retry-After": "0.3"}) if number == 0 else GOOD

    async def main(to: Endpoint) -> None:
        async with open_endpoint(to) as policy:
            await asyncio.gather(*(policy.chat(HELLO, (), Sampling()) for _ in range(2)))

    with chat_server(answer) as server:
        asyncio.run(main(replace(endpoint(server), concurrency=1)))
    assert len(asked) == 3
    assert asked[1] - asked[0] >= 0.3


def test_a_malformed_call_comes_out_as_a_call_with_a_problem() -> None:
    with chat_server(in_turn(says("", ("pay", "{to: bob}"), ("pay", '{"a": NaN}'), ("pay", "")))) as server:
        calls = ask(endpoint(server)).action.tool_calls
    assert [bool(call.parse_error) for call in calls] == [True, True, False]
    assert calls[0].arguments == "{to: bob}"


def test_a_conversation_is_sent_in_the_format_of_endpoints() -> None:
    said = (
        *HELLO,
        Message(
            role="assistant",
            content="",
            tool_calls=(
                ToolCall(id="call00001", name="pay", arguments={"to": "b\ud800"}),
                ToolCall(id="call00002", name="", arguments="{to", parse_error="not JSON"),
            ),
        ),
        Message(role="tool", content="done", tool_call_id="call00001"),
        Message(role="tool", content="no tool call: not JSON", tool_call_id="call00002", is_error=True),
    )
    with chat_server(in_turn(GOOD)) as server:
        ask(endpoint(server), messages=said)
    (body,) = server.requests
    _, assistant, done, failed = body["messages"]
    assert [json.loads(call["function"]["arguments"]) for call in assistant["tool_calls"]] == [{"to": "b\ud800"}, {}]
    assert done == {"role": "tool", "content": "done", "tool_call_id": "call00001"}
    assert failed["content"] == "error: no tool call: not JSON"


def test_tools_can_be_written_as_text() -> None:
    answer = says('I pay.\n<tool_call>{"name": "pay", "arguments": {"to": "bob"}}</tool_call>')
    call = ToolCall(id="call00001", name="pay", arguments={"to": "ann"})
    said = (
        Message(role="system", content="Be brief."),
        *HELLO,
        Message(role="assistant", content="", tool_calls=(call, replace(call, id="call00002"))),
        Message(role="tool", content="done", tool_call_id="call00001"),
        Message(role="tool", content="broke", tool_call_id="call00002", is_error=True),
    )
    with chat_server(in_turn(answer)) as server:
        decided = ask(endpoint(server), messages=said, tools=(TOOL,), templated=True)
    assert [(call.name, call.arguments) for call in decided.action.tool_calls] == [("pay", {"to": "bob"})]
    (body,) = server.requests
    assert "tools" not in body
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][0]["content"].startswith("Be brief.")
    assert '"name": "pay"' in body["messages"][0]["content"]
    assert "done" in body["messages"][3]["content"]
    assert "error: broke" in body["messages"][3]["content"]


def thinks(text: str, own: str = "") -> Reply:
    whole = json.loads(says(text).body)
    whole["choices"][0]["message"]["reasoning_content"] = own
    return Reply(body=json.dumps(whole).encode())


def test_thoughts_before_calls_that_are_written_as_text_are_the_reasoning() -> None:
    call = '<tool_call>{"name": "pay", "arguments": {}}</tool_call>'
    answers = (
        thinks(f"<think>Bob.</think>{call}"),
        thinks(f"<think>Bob.</think>{call}", own="Ann."),
        thinks("<think>Bo"),
    )
    with chat_server(in_turn(*answers)) as server:
        found = [ask(endpoint(server), tools=(TOOL,), templated=True) for _ in answers]
    assert [decided.reasoning for decided in found] == ["Bob.", "Ann.", "Bo"]
    assert [[call.name for call in decided.action.tool_calls] for decided in found] == [["pay"], ["pay"], []]
    assert {decided.action.text for decided in found} == {""}


def test_the_rate_limit_is_respected() -> None:
    async def main(to: Endpoint) -> float:
        loop = asyncio.get_running_loop()
        async with open_endpoint(to) as policy:
            started = loop.time()
            await asyncio.gather(*(policy.chat(HELLO, (), Sampling()) for _ in range(4)))
            return loop.time() - started

    with chat_server(in_turn(GOOD)) as server:
        assert asyncio.run(main(replace(endpoint(server), requests_per_minute=600))) >= 0.3
