"""Conversations and tools as JSON, in the form that chat templates and endpoints use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from gymcp.evaluators.transcript import conversation
from gymcp.store.record_json import dumps
from gymcp.types import Json, Message, Step, Tool, ToolCall


def messages_of(steps: Sequence[Step], first: int = 0) -> tuple[list[Json], list[Json]]:
    """The conversation before the action of step `first`, and the conversation from that action on."""
    before: list[Json] = []
    after: list[Json] = []
    for index, (read, action) in enumerate(conversation(steps)):
        (before if index <= first else after).extend(_encode_message(message) for message in read)
        (before if index < first else after).append(_encode_message(action))
    return before, after


def function_schema(tool: Tool) -> dict[str, Json]:
    """Description of a tool in the form of OpenAI's function calling."""
    described = {"name": tool.name, "description": tool.description, "parameters": to_plain_json(tool.input_schema)}
    return {"type": "function", "function": described}


class ToolIndex:
    """Every tool that was on offer in some steps, in the order of first appearance."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._numbers: dict[str, int] = {}
        self._offers: dict[int, list[int]] = {}
        self.tools: list[Tool] = []
        for step in steps:
            tools = step.observation.tools
            if id(tools) not in self._offers:  # most steps share one tuple
                self._offers[id(tools)] = [self._add(tool) for tool in tools]

    def _add(self, tool: Tool) -> int:
        number = self._numbers.setdefault(dumps(tool), len(self.tools))
        if number == len(self.tools):
            self.tools.append(tool)
        return number

    def tool_numbers(self, step: Step) -> list[int]:
        """Positions in `tools` of the tools that were on offer in a step."""
        return self._offers[id(step.observation.tools)]


def to_plain_json(value: Json) -> Json:
    """A copy that JSON, Arrow and every other reader accept: no lone surrogates, NaN, infinities or records."""
    try:
        return json.loads(dumps(value).encode(errors="strict"), parse_constant=str)
    except UnicodeEncodeError:
        return json.loads(replace_surrogates(dumps(value)), parse_constant=str)


def replace_surrogates(value: str) -> str:
    """The text with a question mark for every lone surrogate, which UTF-8 cannot hold."""
    return value.encode(errors="replace").decode()


def _encode_message(message: Message) -> dict[str, Json]:
    return {
        "role": message.role,
        "content": replace_surrogates(message.content),
        "tool_calls": [_encode_call(call) for call in message.tool_calls] or None,
        "tool_call_id": None if message.tool_call_id is None else replace_surrogates(message.tool_call_id),
    }


def _encode_call(call: ToolCall) -> dict[str, Json]:
    arguments = call.arguments if isinstance(call.arguments, str) else dumps(to_plain_json(call.arguments))
    function = {"name": replace_surrogates(call.name), "arguments": replace_surrogates(arguments)}
    return {"id": replace_surrogates(call.id), "type": "function", "function": function}
