"""Fields of model requests: honoured, refused by name, or ignored, as the table of docs/agent-programs.md says."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.agents.programs.dialects import anthropic_messages, chat_completions, openai_responses
from gymcp.agents.programs.requests import ModelAnswer
from gymcp.types import Action, Decision

PAGE = (Path(__file__).parents[2] / "docs" / "agent-programs.md").read_text(encoding="utf-8")
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "Pay."}]}
CHAT = {**MESSAGES, "tools": [{"type": "function", "function": {"name": name}} for name in ("pay", "ask")]}
RESPONSES: dict[str, Any] = {"input": "Pay.", "tools": [{"type": "function", "name": name} for name in ("pay", "ask")]}
ANTHROPIC = {**MESSAGES, "max_tokens": 9, "tools": [{"name": "pay"}, {"name": "ask"}]}


def choose(name: str) -> dict[str, Any]:
    """A choice of one tool in chat completions."""
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("dialect", "body", "says"),
    [
        (chat_completions, {**CHAT, "n": 2}, "'n' above 1 is not supported: ask for one answer at a time"),
        (chat_completions, {**CHAT, "logprobs": True}, "'logprobs' is not supported: log-probabilities are recorded"),
        (chat_completions, {**CHAT, "functions": [{}]}, "'functions' is not supported: offer functions as 'tools'"),
        (
            chat_completions,
            {**CHAT, "response_format": {"type": "json_object"}},
            "'response_format' of the type 'json_",
        ),
        (chat_completions, {**CHAT, "response_format": "json"}, "'response_format' of the type 'json' is not"),
        (chat_completions, {**CHAT, "tool_choice": "never"}, "'tool_choice' must be auto, none, required or an object"),
        (chat_completions, {**CHAT, "tool_choice": {"type": "custom"}}, "'tool_choice' of the type 'custom' is not"),
        (chat_completions, {**CHAT, "tool_choice": choose("sell")}, "'tool_choice' names 'sell', which is not among"),
        (chat_completions, {**CHAT, "stop": ["a", 1]}, "'stop' must be a text or a list of texts"),
        (openai_responses, {**RESPONSES, "top_logprobs": 3}, "'top_logprobs' is not supported"),
        (openai_responses, {**RESPONSES, "background": True}, "'background' is not supported: wait for the answer"),
        (openai_responses, {**RESPONSES, "prompt": {"id": "p"}}, "'prompt' is not supported: no prompt is stored"),
        (openai_responses, {**RESPONSES, "text": {"format": {"type": "json_schema"}}}, "'text.format' of the type 'js"),
        (openai_responses, {**RESPONSES, "tool_choice": 1}, "'tool_choice' must be auto, none, required or an object"),
        (anthropic_messages, {**ANTHROPIC, "mcp_servers": [{}]}, "'mcp_servers' is not supported: the tools of the"),
        (anthropic_messages, {**ANTHROPIC, "thread": {"type": "create"}}, "'thread' is not supported: no conversation"),
        (anthropic_messages, {**ANTHROPIC, "compaction": {}, "container": "c"}, "'container' is not supported"),
        (
            anthropic_messages,
            {**ANTHROPIC, "tool_choice": {"type": "must"}},
            "'tool_choice' must be one of auto, any, ",
        ),
        (
            anthropic_messages,
            {**ANTHROPIC, "messages": [*MESSAGES["messages"], {"role": "assistant", "content": "I"}]},
            "'messages' that end with the assistant's are not supported: what the assistant has begun is not continued",
        ),
        (
            anthropic_messages,
            {**ANTHROPIC, "stop_sequences": [1]},
            "'stop_sequences' must be a text or a list of texts",
        ),
    ],
)
def test_a_field_that_is_not_supported_is_refused_by_its_name(
    dialect: ModuleType, body: dict[str, Any], says: str
) -> None:
    with pytest.raises(RequestRefused, match=re.escape(says)) as caught:
        dialect.read_request(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("dialect", "body", "choice", "shown"),
    [
        (chat_completions, CHAT, "none", []),
        (chat_completions, CHAT, "required", ["pay", "ask"]),
        (chat_completions, CHAT, choose("ask"), ["ask"]),
        (
            chat_completions,
            CHAT,
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [choose("ask")]}},
            ["ask"],
        ),
        (openai_responses, RESPONSES, "none", []),
        (openai_responses, RESPONSES, "required", ["pay", "ask"]),
        (openai_responses, RESPONSES, {"type": "function", "name": "ask"}, ["ask"]),
        (
            openai_responses,
            RESPONSES,
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "pay"}]},
            ["pay"],
        ),
        (anthropic_messages, ANTHROPIC, {"type": "none"}, []),
        (anthropic_messages, ANTHROPIC, {"type": "any", "disable_parallel_tool_use": True}, ["pay", "ask"]),
        (anthropic_messages, ANTHROPIC, {"type": "tool", "name": "ask"}, ["ask"]),
    ],
)
def test_a_model_is_shown_the_tools_that_it_may_call(
    dialect: ModuleType, body: dict[str, Any], choice: Any, shown: list[str]
) -> None:
    assert [tool.name for tool in dialect.read_request({**body, "tool_choice": choice}).tools] == shown


@pytest.mark.parametrize(
    ("dialect", "body", "ignored"),
    [
        (chat_completions, CHAT, {"response_format": {"type": "text"}, "logprobs": False, "n": 1}),
        (
            chat_completions,
            CHAT,
            {"temperature": 9, "seed": 4, "parallel_tool_calls": False, "reasoning_effort": "low"},
        ),
        (openai_responses, RESPONSES, {"text": {"verbosity": "low"}, "store": True, "include": ["reasoning"]}),
        (anthropic_messages, ANTHROPIC, {"thinking": {"type": "enabled"}, "output_config": {"format": {}}, "top_k": 1}),
    ],
)
def test_a_field_that_is_ignored_changes_nothing(
    dialect: ModuleType, body: dict[str, Any], ignored: dict[str, Any]
) -> None:
    assert dialect.read_request({**body, **ignored}) == dialect.read_request(body)


def test_token_counts_are_streamed_on_demand() -> None:
    """Programs that did not ask for them read the first choice of every event."""
    found = []
    for more in ({}, {"stream_options": {"include_usage": True}}):
        request = chat_completions.read_request({**CHAT, "stream": True, **more})
        answer = ModelAnswer(
            id="1", model="m", decision=Decision(action=Action(text="a")), streams_usage=request.streams_usage
        )
        found.append([bool(data["choices"]) for _, data in chat_completions.write_events(answer) if data != "[DONE]"])
    assert found == [[True, True], [True, True, False]]


def test_a_stop_text_that_ended_an_answer_is_told_in_anthropics_dialect() -> None:
    answer = ModelAnswer(id="1", model="m", decision=Decision(action=Action(text="I look.")), stop_text="Observation:")
    told = {"stop_reason": "stop_sequence", "stop_sequence": "Observation:"}
    whole = anthropic_messages.write_answer(answer)
    assert {name: whole[name] for name in told} == told
    events = dict(anthropic_messages.write_events(answer))
    assert events["message_delta"]["delta"] == told
    assert events["message_start"]["message"]["stop_sequence"] is None


def test_the_page_names_every_field_that_is_refused() -> None:
    table = PAGE.partition("## Fields of a model request")[2].partition("\n## ")[0]
    refused = [
        name for dialect in (chat_completions, openai_responses, anthropic_messages) for name in dialect._REFUSED
    ]
    assert [
        name for name in [*refused, "thread", "n", "response_format", "text.format"] if f"`{name}`" not in table
    ] == []
