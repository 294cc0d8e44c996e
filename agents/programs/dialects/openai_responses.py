"""OpenAI's responses (https://platform.openai.com/docs/api-reference/responses): requests, answers and events.

Nothing is stored between requests, so a program sends the whole conversation each time, as SDKs do by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.agents.programs.dialects.chat_completions import (
    NO_LOGPROBS,
    arguments_text,
    make_call,
    make_tool,
    read_tool_choice,
    write_error,
)
from gymcp.agents.programs.requests import (
    ModelAnswer,
    ModelRequest,
    choose_tools,
    read_field,
    read_format,
    read_objects,
    read_text,
    refuse_fields,
)
from gymcp.types import Json, Message, Tool, ToolCall

__all__ = ["read_request", "write_answer", "write_error", "write_events"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_REFUSED = {
    "previous_response_id": "no earlier response is stored: send the whole conversation as 'input'",
    "conversation": "no conversation is stored: send the whole of it as 'input'",
    "prompt": "no prompt is stored: send it as 'instructions'",
    "background": "wait for the answer, or ask for a stream",
    "top_logprobs": NO_LOGPROBS,
}


def read_request(body: Mapping[str, Any]) -> ModelRequest:
    """The request in a body. Raises RequestRefused for a field that is malformed or not supported."""
    refuse_fields(body, _REFUSED)
    read_format(read_field(body, "text", dict, {}).get("format"), "text.format")
    chosen = read_tool_choice(body.get("tool_choice"))
    instructions = read_field(body, "instructions", str, "")
    messages = [Message(role="system", content=instructions)] if instructions else []
    if isinstance(body.get("input"), str):
        messages.append(Message(role="user", content=body["input"]))
    else:
        messages += _read_items(read_objects(body, "input"))
    if not messages:
        raise RequestRefused(400, "'input' is missing or empty")
    offered = [each for tool in read_objects(body, "tools") for each in _read_tools(tool)]
    return ModelRequest(
        messages=tuple(messages),
        tools=choose_tools([tool for _, tool in offered], chosen),
        namespaces={tool.name: namespace for namespace, tool in offered if namespace},
        max_tokens=read_field(body, "max_output_tokens", int),
        streams=read_field(body, "stream", bool, False),
    )


def _read_items(items: list[Mapping[str, Any]]) -> list[Message]:
    """The messages in a list of items; the text and the calls of one answer become one message again."""
    messages: list[Message] = []
    for index, item in enumerate(items):
        where, kind = f"input[{index}]", item.get("type", "message")
        if kind == "message":
            role = _ROLES.get(str(item.get("role")))
            if role is None:
                raise RequestRefused(400, f"{where}: no role {item.get('role')!r}; have {', '.join(_ROLES)}")
            messages.append(Message(role=role, content=read_text(item.get("content"), where)))  # type: ignore[arg-type]
        elif kind == "function_call":
            name = _join(read_field(item, "namespace", str, ""), str(item.get("name")))
            _add_call(messages, make_call(str(item.get("call_id")), name, item.get("arguments")))
        elif kind == "function_call_output":
            text = read_text(item.get("output"), where)
            messages.append(Message(role="tool", content=text, tool_call_id=str(item.get("call_id"))))
        elif kind != "reasoning":
            raise RequestRefused(400, f"{where}: an item of the type {kind!r} is not supported")
    return messages


def _add_call(messages: list[Message], call: ToolCall) -> None:
    if messages and messages[-1].role == "assistant":
        last = messages.pop()
        messages.append(Message(role="assistant", content=last.content, tool_calls=(*last.tool_calls, call)))
    else:
        messages.append(Message(role="assistant", content="", tool_calls=(call,)))


def _read_tools(tool: Mapping[str, Any], namespace: str = "") -> Iterator[tuple[str, Tool]]:
    """(namespace, tool) pairs of a function, or of a namespace of functions, whose names then begin with it."""
    if tool.get("type") == "namespace" and not namespace:
        for each in read_objects(tool, "tools"):
            yield from _read_tools(each, read_field(tool, "name", str, ""))
    elif tool.get("type") == "function":
        parsed = make_tool(tool, "parameters")
        yield namespace, replace(parsed, name=_join(namespace, parsed.name)) if namespace else parsed
    else:
        raise RequestRefused(400, f"a tool of the type {tool.get('type')!r} is not supported: only functions are")


def _join(namespace: str, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def write_answer(answer: ModelAnswer) -> dict[str, Json]:
    """The answer as one JSON object."""
    return _frame(answer, _items(answer), "incomplete" if answer.is_cut else "completed")


def write_events(answer: ModelAnswer) -> Iterator[tuple[str, Json]]:
    """The answer as (name, data) events."""
    for number, (name, data) in enumerate(_events(answer)):
        yield name, {"type": name, "sequence_number": number, **data}


def _events(answer: ModelAnswer) -> Iterator[tuple[str, dict[str, Json]]]:
    started = _frame(answer, [], "in_progress")
    yield "response.created", {"response": started}
    yield "response.in_progress", {"response": started}
    for index, item in enumerate(_items(answer)):
        place: dict[str, Json] = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            yield from _text_events(item, place)
        else:
            yield "response.output_item.added", {"output_index": index, "item": {**item, "arguments": ""}}
            yield "response.function_call_arguments.delta", {**place, "delta": item["arguments"]}
            done = {**place, "name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", done
        yield "response.output_item.done", {"output_index": index, "item": item}
    name = "response.incomplete" if answer.is_cut else "response.completed"
    yield name, {"response": write_answer(answer)}


def _text_events(item: Mapping[str, Json], place: dict[str, Json]) -> Iterator[tuple[str, dict[str, Json]]]:
    part = _part(item)
    at = {**place, "content_index": 0}
    yield "response.output_item.added", {"output_index": place["output_index"], "item": {**item, "content": []}}
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    yield "response.output_text.delta", {**at, "delta": part["text"], "logprobs": []}
    yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**at, "part": part}


def _part(item: Mapping[str, Json]) -> dict[str, Json]:
    content = item["content"]
    assert isinstance(content, list)
    part = content[0]
    assert isinstance(part, dict)
    return part


def _frame(answer: ModelAnswer, items: list[dict[str, Json]], status: str) -> dict[str, Json]:
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    usage: dict[str, Json] = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": 0,
        "model": answer.model,
        "status": status,
        "output": items,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "usage": None if status == "in_progress" else usage,
    }


def _items(answer: ModelAnswer) -> list[dict[str, Json]]:
    action = answer.decision.action
    items: list[dict[str, Json]] = []
    if action.text or not action.tool_calls:
        part = {"type": "output_text", "text": action.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        items.append({"id": f"msg_{answer.id}", **message})
    for number, call in enumerate(action.tool_calls):
        item = {"call_id": call.id, "name": call.name, "arguments": arguments_text(call), "status": "completed"}
        if namespace := answer.namespaces.get(call.name):
            item |= {"namespace": namespace, "name": call.name.removeprefix(_join(namespace, ""))}
        items.append({"id": f"fc_{answer.id}_{number}", "type": "function_call", **item})
    return items
