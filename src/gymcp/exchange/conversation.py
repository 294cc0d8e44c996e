"""Steps as chat messages, in the shape that chat templates and endpoints know."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from gymcp.store.codec import dumps
from gymcp.types import Json, Message, Step, Tool, ToolCall


def messages_of(steps: Sequence[Step], first: int = 0) -> tuple[list[Json], list[Json]]:
    """The conversation up to the action of step `first`, and from it on."""
    before: list[Json] = []
    after: list[Json] = []
    for index, step in enumerate(steps):
        (before if index <= first else after).extend(_message(message) for message in step.observation.messages)
        action = Message(role="assistant", content=step.action.text, tool_calls=step.action.tool_calls)
        (before if index < first else after).append(_message(action))
    return before, after


def function_schema(tool: Tool) -> dict[str, Json]:
    """As OpenAI's function calling describes a tool."""
    described = {"name": tool.name, "description": tool.description, "parameters": plain(tool.input_schema)}
    return {"type": "function", "function": described}


class Toolbox:
    """Every tool that was on offer in some steps, in the order of first appearance."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._numbers: dict[str, int] = {}
        self._offers: dict[int, list[int]] = {}
        self.tools: list[Tool] = []
        for step in steps:
            offered = step.observation.tools
            if id(offered) not in self._offers:  # most steps share one tuple
                self._offers[id(offered)] = [self._number(tool) for tool in offered]

    def _number(self, tool: Tool) -> int:
        number = self._numbers.setdefault(dumps(tool), len(self.tools))
        if number == len(self.tools):
            self.tools.append(tool)
        return number

    def offered(self, step: Step) -> list[int]:
        """The places in `tools` of those that were on offer in one of the steps."""
        return self._offers[id(step.observation.tools)]


def plain(value: Json) -> Json:
    """A copy that JSON, Arrow and every other reader take: no lone surrogates, no NaN, no infinities, no records."""
    try:
        return json.loads(dumps(value).encode(errors="strict"), parse_constant=str)
    except UnicodeEncodeError:
        return json.loads(clean_text(dumps(value)), parse_constant=str)


def clean_text(value: str) -> str:
    """With a question mark for every lone surrogate, which no UTF-8 can hold."""
    return value.encode(errors="replace").decode()


def _message(message: Message) -> dict[str, Json]:
    return {
        "role": message.role,
        "content": clean_text(message.content),
        "tool_calls": [_call(call) for call in message.tool_calls] or None,
        "tool_call_id": None if message.tool_call_id is None else clean_text(message.tool_call_id),
    }


def _call(call: ToolCall) -> dict[str, Json]:
    arguments = call.arguments if isinstance(call.arguments, str) else dumps(plain(call.arguments))
    function = {"name": clean_text(call.name), "arguments": clean_text(arguments)}
    return {"id": clean_text(call.id), "type": "function", "function": function}
