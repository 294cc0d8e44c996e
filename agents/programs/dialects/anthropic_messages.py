"""Anthropic's messages (https://docs.anthropic.com/en/api/messages): requests, answers and events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.agents.programs.dialects.chat_completions import make_tool
from gymcp.agents.programs.requests import (
    ModelAnswer,
    ModelRequest,
    choose_tools,
    read_field,
    read_objects,
    read_stop,
    read_text,
    refuse_fields,
)
from gymcp.types import Json, Message, Tool, ToolCall

_UNREAD = ("thinking", "redacted_thinking")
"""Kinds of blocks that the program sends back and the model does not read."""
_CHOICES = ("auto", "any", "tool", "none")
"""Choices of tools: without tools for ``none``, with the named one for ``tool``; that it is called is the policy's."""
_REFUSED = {
    "mcp_servers": "the tools of the episode are an MCP server that the program itself calls",
    "container": "an episode has its own tools only",
    "compaction": "ask for a summary in a message, and send it in place of the messages",
}
_NO_THREAD = {"thread": "no conversation is stored: send the whole of it as 'messages'"}


def read_request(body: Mapping[str, Any]) -> ModelRequest:
    """The request in a body. Raises RequestRefused for a field that is malformed or not supported."""
    refuse_fields(body, _REFUSED)
    refuse_fields(body, _NO_THREAD, "thread_unsupported_request")  # with this code, the SDK goes on without a thread
    chosen = _read_tool_choice(read_field(body, "tool_choice", dict, {}))
    tools = tuple(_read_tool(tool) for tool in read_objects(body, "tools"))
    messages = read_objects(body, "messages")
    system = read_text(body.get("system"), "system")
    conversation = [
        part for index, message in enumerate(messages) for part in _read_message(message, f"messages[{index}]")
    ]
    if not conversation:
        raise RequestRefused(400, "'messages' is missing or empty")
    if conversation[-1].role == "assistant":
        why = "what the assistant has begun is not continued: end with a message of the user"
        raise RequestRefused(400, f"'messages' that end with the assistant's are not supported: {why}")
    return ModelRequest(
        messages=(*((Message(role="system", content=system),) if system else ()), *conversation),
        tools=choose_tools(tools, chosen),
        max_tokens=read_field(body, "max_tokens", int),
        stop=read_stop(body, "stop_sequences"),
        streams=read_field(body, "stream", bool, False),
    )


def _read_tool_choice(choice: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Names of the tools that the model is shown; None: all of them. Raises RequestRefused."""
    kind = choice.get("type", "auto")
    if kind not in _CHOICES:
        raise RequestRefused(400, f"'tool_choice' must be one of {', '.join(_CHOICES)}, not {kind!r:.40}")
    if kind == "tool":
        return (read_field(choice, "name", str, ""),)
    return () if kind == "none" else None


def _read_message(fields: Mapping[str, Any], where: str) -> Iterator[Message]:
    """The messages in one of Anthropic's: results of tools, which there are parts of the user's message, come first."""
    role, content = fields.get("role"), fields.get("content")
    if role not in ("user", "assistant", "system"):
        raise RequestRefused(400, f"{where}: no role {role!r}; have user, assistant, system")
    if isinstance(content, str):
        yield Message(role=role, content=content)
        return
    blocks = [block for block in read_objects(fields, "content") if block.get("type") not in _UNREAD]
    calls = tuple(_read_call(block, where) for block in blocks if block.get("type") == "tool_use")
    for block in blocks:
        if block.get("type") == "tool_result":
            yield Message(
                role="tool",
                content=read_text(block.get("content"), where),
                tool_call_id=str(block.get("tool_use_id")),
                is_error=bool(block.get("is_error")),
            )
    texts = [block for block in blocks if block.get("type") not in ("tool_use", "tool_result")]
    if texts or calls:
        yield Message(role=role, content=read_text(texts, where), tool_calls=calls)


def _read_call(block: Mapping[str, Any], where: str) -> ToolCall:
    name, arguments = block.get("name"), block.get("input", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise RequestRefused(400, f"{where}: a tool_use without a name or an object as input")
    return ToolCall(id=str(block.get("id")), name=name, arguments=arguments)


def _read_tool(tool: Mapping[str, Any]) -> Tool:
    if tool.get("type", "custom") != "custom":
        raise RequestRefused(400, f"a tool of the type {tool.get('type')!r} is not supported: only custom tools are")
    return make_tool(tool, "input_schema")


def write_answer(answer: ModelAnswer) -> dict[str, Json]:
    """The answer as one JSON object."""
    return {**_frame(answer), "content": _blocks(answer), **_ending(answer), "usage": _usage(answer)}


def write_events(answer: ModelAnswer) -> Iterator[tuple[str, Json]]:
    """The answer as (name, data) events."""
    start = {**_frame(answer), "content": [], "stop_reason": None, "usage": {**_usage(answer), "output_tokens": 0}}
    yield "message_start", {"type": "message_start", "message": start}
    for index, block in enumerate(_blocks(answer)):
        empty, delta = _split_block(block)
        yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": empty}
        yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    yield "message_delta", {"type": "message_delta", "delta": _ending(answer), "usage": _usage(answer)}
    yield "message_stop", {"type": "message_stop"}


def write_error(status: int, code: str, why: str) -> dict[str, Json]:
    """The body of an error."""
    kinds = {401: "authentication_error", 413: "request_too_large", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": f"{code}: {why}", "details": {"error_code": code}}}


def _frame(answer: ModelAnswer) -> dict[str, Json]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "stop_sequence": None,
    }


def _blocks(answer: ModelAnswer) -> list[dict[str, Json]]:
    """Text and calls. A call whose arguments are no object has none: the dialect cannot say what the model wrote."""
    action = answer.decision.action
    blocks: list[dict[str, Json]] = [{"type": "text", "text": action.text}] if action.text else []
    for call in action.tool_calls:
        arguments = {} if isinstance(call.arguments, str) else dict(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def _split_block(block: Mapping[str, Json]) -> tuple[dict[str, Json], dict[str, Json]]:
    """The block without its content, and the content as one delta."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
    return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}


def _ending(answer: ModelAnswer) -> dict[str, Json]:
    """The reason why the answer ended."""
    reason = "tool_use" if answer.decision.action.tool_calls else "stop_sequence" if answer.stop_text else "end_turn"
    return {"stop_reason": "max_tokens" if answer.is_cut else reason, "stop_sequence": answer.stop_text or None}


def _usage(answer: ModelAnswer) -> dict[str, Json]:
    return {"input_tokens": answer.prompt_tokens, "output_tokens": answer.completion_tokens}
