"""OpenAI's chat completions (https://platform.openai.com/docs/api-reference/chat): requests, answers and events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.agents.programs.requests import (
    ModelAnswer,
    ModelRequest,
    choose_tools,
    read_field,
    read_format,
    read_objects,
    read_stop,
    read_text,
    refuse_fields,
)
from gymcp.agents.tool_calls.strict_json import Malformed, load_object
from gymcp.types import Json, Message, Tool, ToolCall

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
NO_LOGPROBS = "log-probabilities are recorded with the episode, and not given to the program"
_REFUSED = {
    "logprobs": NO_LOGPROBS,
    "top_logprobs": NO_LOGPROBS,
    "functions": "offer functions as 'tools'",
    "function_call": "write 'tool_choice'",
    "audio": "answers are text",
    "web_search_options": "an episode has its own tools only",
}


def read_request(body: Mapping[str, Any]) -> ModelRequest:
    """The request in a body. Raises RequestRefused for a field that is malformed or not supported."""
    refuse_fields(body, _REFUSED)
    if read_field(body, "n", int, 1) != 1:
        raise RequestRefused(400, "'n' above 1 is not supported: ask for one answer at a time")
    read_format(body.get("response_format"), "response_format")
    chosen = read_tool_choice(body.get("tool_choice"), "function")
    messages = read_objects(body, "messages")
    if not messages:
        raise RequestRefused(400, "'messages' is missing or empty")
    tools = tuple(_read_tool(tool) for tool in read_objects(body, "tools"))
    return ModelRequest(
        messages=tuple(_read_message(message, f"messages[{index}]") for index, message in enumerate(messages)),
        tools=choose_tools(tools, chosen),
        max_tokens=read_field(body, "max_completion_tokens", int, read_field(body, "max_tokens", int)),
        stop=read_stop(body, "stop"),
        streams=read_field(body, "stream", bool, False),
        streams_usage=read_field(read_field(body, "stream_options", dict, {}), "include_usage", bool, False),
    )


def read_tool_choice(choice: Any, within: str = "") -> tuple[str, ...] | None:
    """Names of the tools that the model is shown; None: all of them. Raises RequestRefused.

    A forced call counts as a free choice among these: no policy is made to write what it would not. `within`: key of
    the object that holds a tool's name; empty: the choice itself holds it.
    """
    if choice in (None, "auto", "required"):
        return None
    if choice == "none":
        return ()
    if not isinstance(choice, dict):
        raise RequestRefused(400, f"'tool_choice' must be auto, none, required or an object, not {choice!r:.40}")
    if choice.get("type") != "allowed_tools":
        return (_read_choice(choice, within),)
    allowed = read_field(choice, "allowed_tools", dict, {}) if within else choice
    return tuple(_read_choice(tool, within) for tool in read_objects(allowed, "tools"))


def _read_choice(choice: Mapping[str, Any], within: str) -> str:
    """The name of a chosen tool."""
    fields = choice.get(within) if within else choice
    name = fields.get("name") if isinstance(fields, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        kind = f"{choice.get('type')!r:.40}"
        raise RequestRefused(
            400, f"'tool_choice' of the type {kind} is not supported: name a function, or allowed_tools"
        )
    return name


def _read_message(fields: Mapping[str, Any], where: str) -> Message:
    role = _ROLES.get(str(fields.get("role")))
    if role is None:
        raise RequestRefused(400, f"{where}: no role {fields.get('role')!r}; have {', '.join(_ROLES)}")
    calls = tuple(_read_call(call, where) for call in read_objects(fields, "tool_calls"))
    return Message(
        role=role,  # type: ignore[arg-type]
        content=read_text(fields.get("content"), where),
        tool_calls=calls,
        tool_call_id=read_field(fields, "tool_call_id", str),
    )


def _read_call(call: Mapping[str, Any], where: str) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestRefused(400, f"{where}: a tool call without a function's name")
    return make_call(str(call.get("id")), function["name"], function.get("arguments"))


def make_call(id: str, name: str, arguments: Any) -> ToolCall:
    """A call whose arguments a program sends back as text; text that is no JSON object is kept as it is."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    try:
        return ToolCall(id=id, name=name, arguments=load_object(text or "{}"))
    except Malformed as error:
        return ToolCall(id=id, name=name, arguments=text, parse_error=f"the arguments are {error}")


def _read_tool(tool: Mapping[str, Any]) -> Tool:
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise RequestRefused(400, f"a tool of the type {tool.get('type')!r} is not supported: only functions are")
    return make_tool(function, "parameters")


def make_tool(fields: Mapping[str, Any], schema: str) -> Tool:
    """The tool in an object with a name, a description and a JSON schema under the key `schema`."""
    if not isinstance(fields.get("name"), str):
        raise RequestRefused(400, "a tool without a name")
    return Tool(
        name=fields["name"],
        description=read_field(fields, "description", str, ""),
        input_schema=read_field(fields, schema, dict, {}),
    )


def write_answer(answer: ModelAnswer) -> dict[str, Json]:
    """The answer as one JSON object."""
    return {
        **_frame(answer, "chat.completion"),
        "choices": [{"index": 0, "message": _message(answer), "finish_reason": _finish(answer), "logprobs": None}],
        "usage": _usage(answer),
    }


def write_events(answer: ModelAnswer) -> Iterator[tuple[str, Json]]:
    """The answer as (name, data) events without names; "[DONE]" ends them."""
    message = _message(answer)
    calls = message.get("tool_calls", [])
    assert isinstance(calls, list)
    delta = {**message, **({"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]} if calls else {})}
    frame = _frame(answer, "chat.completion.chunk")
    yield "", {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield "", {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}]}
    if answer.streams_usage:
        yield "", {**frame, "choices": [], "usage": _usage(answer)}
    yield "", "[DONE]"


def write_error(status: int, code: str, why: str) -> dict[str, Json]:
    """The body of an error."""
    return {
        "error": {"message": why, "type": "invalid_request_error" if status < 500 else "server_error", "code": code}
    }


def arguments_text(call: ToolCall) -> str:
    """The arguments of a call as the text that a model wrote, or as JSON."""
    return call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))


def _frame(answer: ModelAnswer, kind: str) -> dict[str, Json]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": 0, "model": answer.model}


def _message(answer: ModelAnswer) -> dict[str, Json]:
    action = answer.decision.action
    fields: dict[str, Json] = {"role": "assistant", "content": action.text or (None if action.tool_calls else "")}
    if action.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_text(call)},
            }
            for call in action.tool_calls
        ]
    return fields


def _finish(answer: ModelAnswer) -> str:
    if answer.is_cut:
        return "length"
    return "tool_calls" if answer.decision.action.tool_calls else "stop"


def _usage(answer: ModelAnswer) -> dict[str, Json]:
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
