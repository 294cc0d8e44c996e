"""A model behind a chat endpoint that solves an environment's tasks, each known by its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gymcp.types import Action, Decision, GoldTurn, Message, ModelUsage, Sampling, Task, Tool, ToolCall

USAGE = ModelUsage(model="gold", prompt_tokens=10, completion_tokens=5)


FINAL = "final_answer"
"""Tool by which smolagents' programs end."""


class GoldPolicy:
    """Answers with the next gold call of the task whose prompt is in the conversation, then with its final text.

    It keeps no state: how far an episode has come follows from the messages since the user's last one. A request
    without tools, as for a title, gets a text.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._turns = [(prompt, gold) for task in tasks for prompt, gold in zip(task.prompts, task.gold, strict=True)]
        self.asked: list[tuple[Message, ...]] = []

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        self.asked.append(tuple(messages))
        at, turn = self._find(messages)
        made = sum(message.role == "assistant" for message in messages[at:])  # some kits write calls as text
        if tools and made < len(turn.calls):
            call = turn.calls[made]
            return Decision(action=Action(tool_calls=(replace(call, name=_find_name(call, tools)),)), spent=USAGE)
        text = turn.final_text or "Done."
        if any(tool.name == FINAL for tool in tools):
            return Decision(
                action=Action(tool_calls=(ToolCall(id="end", name=FINAL, arguments={"answer": text}),)), spent=USAGE
            )
        return Decision(action=Action(text=text), spent=USAGE)

    def _find(self, messages: Sequence[Message]) -> tuple[int, GoldTurn]:
        """The place of the last message that holds a prompt, and the gold of that prompt's turn."""
        for at in reversed(range(len(messages))):
            if messages[at].role == "user":
                for prompt, gold in self._turns:
                    if prompt in messages[at].content:
                        return at, gold
        raise LookupError("no message holds the prompt of a task")


def _find_name(call: ToolCall, tools: Sequence[Tool]) -> str:
    """The name by which the program offers the call's tool: some kits write the server's name before it."""
    offered = [tool.name for tool in tools]
    return next((name for name in offered if name.endswith(f"__{call.name}") and call.name not in offered), call.name)


DELEGATE = "ask_clerk"
"""Tool by which a program of the examples asks its sub-agent."""


class RememberingGoldPolicy(GoldPolicy):
    """The same for programs that forget or delegate: it remembers by itself how many calls each task has had.

    It delegates if it has the tool for it, and a request without tools is one for a summary, which names the task.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(tasks)
        self._made: dict[str, int] = {}

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        self.asked.append(tuple(messages))
        prompt, turn = next(
            (prompt, gold) for prompt, gold in self._turns if any(prompt in message.content for message in messages)
        )
        if not tools:
            return Decision(action=Action(text=f"The user has asked for this: {prompt}"), spent=USAGE)
        if any(tool.name == DELEGATE for tool in tools):
            call = ToolCall(id="ask", name=DELEGATE, arguments={"input": prompt})
            asked = any(message.tool_calls for message in messages)
            action = Action(text=turn.final_text or "Done.") if asked else Action(tool_calls=(call,))
            return Decision(action=action, spent=USAGE)
        made = self._made.get(prompt, 0)
        if made == len(turn.calls):
            return Decision(action=Action(text=turn.final_text or "Done."), spent=USAGE)
        self._made[prompt] = made + 1
        return Decision(action=Action(tool_calls=(turn.calls[made],)), spent=USAGE)
