"""Tool calls for chat endpoints without native ones: tools described in the system prompt, calls written as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from gymcp.agents.policies.openai.wire_format import cut_reasoning
from gymcp.agents.prompts.rendering import describe_tool
from gymcp.agents.tool_calls.formats import hermes
from gymcp.agents.tool_calls.parsing import CallIds, parse_action, split_thoughts
from gymcp.protocols import ChatPolicy
from gymcp.types import Decision, Message, Sampling, Tool, ToolCall

_INSTRUCTIONS = """\
You can call these tools, one description per line:
{tools}

To call one, write, any number of times:
<tool_call>
{{"name": NAME, "arguments": OBJECT}}
</tool_call>
What it answers comes next. When you have nothing left to call, say what you have to say."""


class TextToolCallPolicy:
    """A `ChatPolicy` over another one, which is never offered a tool itself.

    Thoughts in ``<think>`` tags are the decision's reasoning, unless the endpoint sent reasoning of its own.
    """

    def __init__(self, policy: ChatPolicy) -> None:
        self._policy = policy
        self._new_id = CallIds()

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        decision = await self._policy.chat(write_as_text(messages, tools), (), sampling)
        text = decision.action.text
        reasoning = decision.reasoning or cut_reasoning(split_thoughts(text)[0])
        return replace(decision, action=parse_action(text, tools, hermes, self._new_id), reasoning=reasoning)


def write_as_text(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The conversation without tool calls: calls become text of the assistant, results become text of the user."""
    system = [message.content for message in messages if message.role == "system"]
    if tools:
        system.append(_INSTRUCTIONS.format(tools="\n".join(json.dumps(describe_tool(tool)) for tool in tools)))
    written = [Message(role="system", content="\n\n".join(system))] if system else []
    for message in messages:
        if message.role == "assistant":
            calls = "".join(f"\n{_write_call(call)}" for call in message.tool_calls)
            written.append(Message(role="assistant", content=(message.content + calls).strip()))
        elif message.role == "tool":
            content = f"error: {message.content}" if message.is_error else message.content
            result = f"<tool_response>\n{content}\n</tool_response>"
            if written and written[-1].role == "user":  # parallel calls: many endpoints require alternating roles
                written[-1] = replace(written[-1], content=f"{written[-1].content}\n{result}")
            else:
                written.append(Message(role="user", content=result))
        elif message.role == "user":
            written.append(message)
    return written


def _write_call(call: ToolCall) -> str:
    if call.parse_error or isinstance(call.arguments, str):
        inside = str(call.arguments) if call.arguments else call.name
    else:
        inside = json.dumps({"name": call.name, "arguments": dict(call.arguments)})
    return f"<tool_call>\n{inside}\n</tool_call>"
