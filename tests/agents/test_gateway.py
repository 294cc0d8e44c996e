"""The gateway of programs, asked by the vendors' own SDKs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from gateway_serving import CALL, CALLS, CUSTOM, FLAT, FUNCTION, PAY, USAGE, Scripted, Served, post, run
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from gymcp.agents.endpoint.tool_exchange import TurnEnded, WaitingCall
from gymcp.agents.programs.exchange import Exchange
from gymcp.types import (
    Action,
    Message,
    Observation,
    ToolCall,
)

# ------------------------------------------------------------------------------------------------------------ dialects


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_openai_chat_completions(tmp_path: Path, streams: bool) -> None:
    policy = Scripted(CALLS, Action(text="Done."))

    async def work(served: Served) -> None:
        client = served.openai.chat.completions
        messages: list[Any] = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Pay 5."}]
        for _ in range(2):
            if streams:
                usage: Any = {"include_usage": True}
                offer = client.stream(model="any", messages=messages, tools=[FUNCTION], stream_options=usage)
                async with offer as stream:
                    answer: Any = await stream.get_final_completion()
            else:
                answer = await client.create(model="any", messages=messages, tools=[FUNCTION], max_tokens=9, stop="x")
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": f"paid {call.function.arguments}"}
                for call in message.tool_calls or ()
            ]
            assert answer.usage.total_tokens == 18
        assert (answer.choices[0].finish_reason, message.content) == ("stop", "Done.")

    run(tmp_path, policy, work)
    check_talk(policy, is_error=False)
    assert policy.sampling[0].max_tokens == (512 if streams else 9)
    assert policy.sampling[0].stop == (() if streams else ("x",))


def check_talk(policy: Scripted, *, is_error: bool) -> None:
    """The model read, in its second request, what was said in all dialects."""
    assert policy.tools == [(PAY,)] * 2
    system, user, calls, *results = policy.messages[1]
    assert (system.role, system.content, user.role, user.content) == ("system", "Be kind.", "user", "Pay 5.")
    assert (calls.content, [call.arguments for call in calls.tool_calls]) == ("I pay.", [{"amount": 5}, {"amount": 6}])
    assert [message.tool_call_id for message in results] == [call.id for call in calls.tool_calls]
    assert [message.content for message in results] == ['paid {"amount": 5}', 'paid {"amount": 6}']
    assert [message.is_error for message in results] == [is_error] * 2


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_openai_responses(tmp_path: Path, streams: bool) -> None:
    policy = Scripted(CALLS, Action(text="Done."))

    async def work(served: Served) -> None:
        client = served.openai.responses
        items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Pay 5."}]}]
        for _ in range(2):
            if streams:
                async with client.stream(model="any", instructions="Be kind.", input=items, tools=[FLAT]) as stream:
                    answer: Any = await stream.get_final_response()
            else:
                answer = await client.create(model="any", instructions="Be kind.", input=items, tools=[FLAT])
            items += [item.model_dump(exclude_none=True) for item in answer.output]
            items += [
                {"type": "function_call_output", "call_id": item.call_id, "output": f"paid {item.arguments}"}
                for item in answer.output
                if item.type == "function_call"
            ]
            assert answer.usage.total_tokens == 18
        assert (answer.status, answer.output_text) == ("completed", "Done.")

    run(tmp_path, policy, work)
    check_talk(policy, is_error=False)


def test_openai_responses_with_tools_in_a_namespace(tmp_path: Path) -> None:
    """As Codex offers the tools of an MCP server."""
    called = Action(tool_calls=(ToolCall(id="c", name="mcp__gymcp__pay", arguments={"amount": 5}),))
    policy = Scripted(called, Action(text="Done."))
    tools = [{"type": "namespace", "name": "mcp__gymcp", "description": "Tools.", "tools": [FLAT]}, FLAT]

    async def work(served: Served) -> None:
        items: list[Any] = [{"role": "user", "content": "Pay 5."}]
        answer = (await post(served, "/v1/responses", {"input": items, "tools": tools})).json()
        (call,) = answer["output"]
        assert (call["namespace"], call["name"], call["arguments"]) == ("mcp__gymcp", "pay", '{"amount": 5}')
        items += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": "paid"}]
        await post(served, "/v1/responses", {"input": items, "tools": tools})
        end = served.exchange.decide_end(TurnEnded(text="Done."))
        assert [end.context, *(each.context for each in end.side_answers)] == [0, 0]

    run(tmp_path, policy, work)
    assert [tool.name for tool in policy.tools[0]] == ["mcp__gymcp__pay", "pay"]
    assert policy.messages[1][1].tool_calls[0].name == "mcp__gymcp__pay"


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_anthropic_messages(tmp_path: Path, streams: bool) -> None:
    policy = Scripted(CALLS, Action(text="Done."))

    async def work(served: Served) -> None:
        client = served.anthropic.messages
        messages: list[Any] = [{"role": "user", "content": "Pay 5."}]
        wanted: Any = {"model": "any", "max_tokens": 99, "system": "Be kind.", "tools": [CUSTOM]}
        for _ in range(2):
            if streams:
                async with client.stream(messages=messages, **wanted) as stream:
                    answer: Any = await stream.get_final_message()
            else:
                answer = await client.create(messages=messages, **wanted)
            messages.append({"role": "assistant", "content": [part.model_dump() for part in answer.content]})
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": part.id,
                    "is_error": True,
                    "content": f'paid {{"amount": {part.input["amount"]}}}',
                }
                for part in answer.content
                if part.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
            assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 7)
        assert (answer.stop_reason, answer.content[0].text) == ("end_turn", "Done.")
        assert (await client.count_tokens(model="any", messages=messages)).input_tokens > 10

    run(tmp_path, policy, work)
    check_talk(policy, is_error=True)


def test_an_answer_that_ran_out_of_tokens_says_so_in_every_dialect(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        chat = await served.openai.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        assert chat.choices[0].finish_reason == "length"
        response = await served.openai.responses.create(model="m", input="a")
        assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
            "incomplete",
            "max_output_tokens",
        )
        message = await served.anthropic.messages.create(
            model="m", max_tokens=5, messages=[{"role": "user", "content": "a"}]
        )
        assert message.stop_reason == "max_tokens"

    run(tmp_path, Scripted(Action(text="cut of"), finish="length"), work)


# --------------------------------------------------------------------------------------------------------------- tools


def test_a_call_becomes_a_step_with_the_answer_that_asked_for_it(tmp_path: Path) -> None:
    policy = Scripted(Action(text="a title"), Action(tool_calls=(CALL,)))

    async def work(served: Served) -> None:
        exchange = served.exchange
        for text in ("Give it a title.", "Pay."):
            await served.openai.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        headers = {"Authorization": f"Bearer {exchange.token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            streamable_http_client(f"{served.address}/mcp", http_client=http) as (reading, writing, *_),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            listed = await session.list_tools()
            assert [(tool.name, tool.description) for tool in listed.tools] == [("pay", "Pay an amount.")]
            calling = asyncio.create_task(session.call_tool("pay", {"amount": 5}))
            event = await exchange.events.get()
            assert isinstance(event, WaitingCall)
            decision = exchange.decide_call(event)
            assert [(call.name, call.arguments) for call in decision.action.tool_calls] == [("pay", {"amount": 5})]
            assert decision.spent == USAGE
            assert [(each.action.text, each.spent) for each in decision.side_answers] == [("a title", USAGE)]
            result = Message(role="tool", content="no money", tool_call_id=event.call.id, is_error=True)
            exchange.observe(Observation(messages=(result,), tools=(PAY,)))
            answer = await calling
            assert (answer.is_error, answer.content[0].text) == (True, "no money")  # type: ignore[union-attr]

    run(tmp_path, policy, work)


def to_call(**changes: Any) -> dict[str, Any]:
    """A request that calls a tool, with some of its fields or parameters changed."""
    params = {"name": "pay", "arguments": {"amount": 5}, **changes.pop("params", {})}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params, **changes}


MCP_CALLS = (
    to_call(),
    to_call(id="seven", params={"arguments": None, "_meta": {"progressToken": "p"}}),
    to_call(params={"name": "fail"}),
    to_call(id=True),
    to_call(id=None),
    to_call(jsonrpc="1.0"),
    to_call(params={"name": 3}),
    to_call(params={"arguments": []}),
    to_call(params={"_meta": {"progressToken": True}}),
    to_call(params={"_meta": {"other": 1}}),
    to_call(params={"more": 1}),
    to_call(method="tools/none"),
)


def test_a_plain_call_is_answered_as_the_sdk_answers_it(tmp_path: Path) -> None:
    async def answer_calls(exchange: Exchange) -> None:
        while True:
            event = await exchange.events.get()
            assert isinstance(event, WaitingCall)
            call, failed = event.call, event.call.name == "fail"
            message = Message(role="tool", content=f"{call.arguments}ü", tool_call_id=call.id, is_error=failed)
            exchange.observe(Observation(messages=(message,), tools=(PAY,)))

    async def ask(client: httpx.AsyncClient, body: Any, kind: str) -> tuple[int, Any]:
        answer = await client.post("/mcp", content=json.dumps(body), headers={"Content-Type": kind})
        return answer.status_code, answer.json() if answer.content else None

    async def work(served: Served) -> None:
        answering = asyncio.create_task(answer_calls(served.exchange))
        headers = {"Authorization": f"Bearer {served.exchange.token}", "Accept": "application/json, text/event-stream"}
        async with httpx.AsyncClient(base_url=served.address, headers=headers, timeout=60) as client:
            for body in MCP_CALLS:
                of_sdk = await ask(client, body, "application/json; charset=utf-8")  # is never plain
                assert (body, await ask(client, body, "application/json")) == (body, of_sdk)
        answering.cancel()

    run(tmp_path, Scripted(Action(text="b")), work)


def test_two_agents_on_one_key_have_contexts_and_results_of_their_own(tmp_path: Path) -> None:
    """As a program and its sub-agents: they share the episode, its tools and its budget, and nothing else."""

    async def work(served: Served) -> None:
        exchange = served.exchange

        async def agent(amount: int) -> str:
            messages: list[Any] = [{"role": "user", "content": f"Pay {amount}."}]
            await served.openai.chat.completions.create(model="m", messages=messages)
            return (await exchange.tool_exchange.call_tool("pay", {"amount": amount})).content

        agents = [asyncio.create_task(agent(amount)) for amount in (5, 6)]
        events = [await exchange.events.get() for _ in agents]
        for event in reversed(events):
            assert isinstance(event, WaitingCall)
            exchange.decide_call(event)
            assert isinstance(event.call.arguments, dict)
            result = Message(role="tool", content=f"paid {event.call.arguments['amount']}", tool_call_id=event.call.id)
            exchange.observe(Observation(messages=(result,), tools=(PAY,)))
        assert await asyncio.gather(*agents) == ["paid 5", "paid 6"]

    policy = Scripted(Action(text="a"))
    run(tmp_path, policy, work)
    assert sorted(messages[0].content for messages in policy.messages) == ["Pay 5.", "Pay 6."]
