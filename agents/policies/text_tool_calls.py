"""Tool calls for chat endpoints that have none of their own: described in the system prompt, written as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from gymcp.agents.prompts.rendering import function
from gymcp.agents.tool_calls.formats import hermes
from gymcp.agents.tool_calls.parsing import CallIds, parse_action
from gymcp.protocols import ChatPolicy
from gymcp.types import Decision, Message, Sampling, Tool, ToolCall

_HOW = """\
You can call these tools, one description per line:
{tools}

To call one, write, any number of times:
<tool_call>
{{"name": NAME, "arguments": OBJECT}}
</tool_call>
What it answers comes next. When you have nothing left to call, say what you have to say."""


class Templated:
    """A `ChatPolicy` over another one that is never offered a tool."""

    def __init__(self, policy: ChatPolicy) -> None:
        self._policy = policy
        self._new_id = CallIds()

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        decided = await self._policy.chat(as_text(messages, tools), (), sampling)
        return replace(decided, action=parse_action(decided.action.text, tools, hermes, self._new_id))


def as_text(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The conversation without tool calls: calls are what the assistant said, results what the user says."""
    system = [message.content for message in messages if message.role == "system"]
    if tools:
        system.append(_HOW.format(tools="\n".join(json.dumps(function(tool)) for tool in tools)))
    found = [Message(role="system", content="\n\n".join(system))] if system else []
    for message in messages:
        if message.role == "assistant":
            calls = "".join(f"\n{_written(call)}" for call in message.tool_calls)
            found.append(Message(role="assistant", content=(message.content + calls).strip()))
        elif message.role == "tool":
            said = f"error: {message.content}" if message.is_error else message.content
            result = f"<tool_response>\n{said}\n</tool_response>"
            if found and found[-1].role == "user":  # results of parallel calls: many endpoints want roles to alternate
                found[-1] = replace(found[-1], content=f"{found[-1].content}\n{result}")
            else:
                found.append(Message(role="user", content=result))
        elif message.role == "user":
            found.append(message)
    return found


def _written(call: ToolCall) -> str:
    if call.parse_error or isinstance(call.arguments, str):
        inside = str(call.arguments) if call.arguments else call.name
    else:
        inside = json.dumps({"name": call.name, "arguments": dict(call.arguments)})
    return f"<tool_call>\n{inside}\n</tool_call>"
