"""Users that an agent can talk to: scripted ones, and one that a model plays."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gymcp.errors import PromptTooLong
from gymcp.evaluators.graders.questions import ASK_USER, asks_one_thing, match_facts
from gymcp.protocols import ChatPolicy, UserView
from gymcp.seeds import derive_seed
from gymcp.types import Action, Decision, Fact, Message, Role, Sampling, Tool, ToolCall

ASK_WITH_TOOL = f"If you need something from me, ask with {ASK_USER}; else finish."
DO_NOT_KNOW = "I do not know, and I do not mind."
"""Answer to a question about anything else than the task's facts."""
ONE_THING = "One thing at a time, please."
"""Answer to a question that asks for several things at once."""
GREETING = "Hello. How can I help you?"
"""First message to a model that plays the user, because it needs a message to answer."""
SILENCE = "..."
"""Message in place of an empty answer of such a model, which does not mean that the user leaves."""


@dataclass(frozen=True, slots=True)
class ScriptedUser:
    """A user that says the task's prompts one after another, whatever the agent says, and then leaves."""

    prompts: Sequence[str]

    async def reply(self, view: UserView) -> Action | None:
        count = sum(message.role == "user" and not message.tool_calls for message in view.messages)
        return Action(text=self.prompts[count]) if count < len(self.prompts) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskableUser:
    """A scripted user that answers questions which a tool asks, with those facts that the question asks for."""

    prompts: Sequence[str]
    facts: tuple[Fact, ...] = ()

    async def reply(self, view: UserView) -> Action | None:
        """The next prompt; once, in reply to a question in a message, the hint to use the tool, which has a price."""
        own_texts = [message.content for message in view.messages if message.role == "user"]
        last = view.messages[-1].content.rstrip() if view.messages else ""
        if last.endswith("?") and ASK_WITH_TOOL not in own_texts:
            return Action(text=ASK_WITH_TOOL)
        count = sum(text != ASK_WITH_TOOL for text in own_texts)
        return Action(text=self.prompts[count]) if count < len(self.prompts) else None

    async def answer_question(self, question: str) -> str:
        if not asks_one_thing(question):
            return ONE_THING
        facts = match_facts(question, self.facts)
        return " ".join(fact.says for fact in facts) or DO_NOT_KNOW


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructedUser:
    """A scripted user that calls the tools which the agent names, from the user's own tools, and reports the results.

    The agent names a tool by its name, or with spaces for the underscores. A call gets the arguments of the script's
    next call of that tool; beyond the script, only tools that need no arguments are called.
    """

    opening: str
    """The user's first message."""
    script: tuple[ToolCall, ...] = ()
    """The calls that the user knows how to make: the user's part of a task's gold."""
    patience: int = 2
    """Most answers in a row to an agent that names no tool while some of the script remains; then the user leaves. If
    nothing remains, the user leaves at once."""

    async def reply(self, view: UserView) -> Action | None:
        if not view.messages:
            return Action(text=self.opening)
        at = max(index for index, message in enumerate(view.messages) if message.role == "assistant")
        before, agent_text, since = view.messages[:at], view.messages[at].content, view.messages[at + 1 :]
        if since:
            return Action(text=_report_results(since))
        remaining = self._remaining_script(before)
        tools = list(_find_named_tools(agent_text, view.tools))
        if calls := list(_make_calls(tools, remaining)):
            return Action(tool_calls=tuple(calls))
        if tools:
            return Action(text=f"I do not know with what: {', '.join(tool.name for tool in tools)}.")
        last_call = max((index for index, message in enumerate(before) if message.tool_calls), default=0)
        answers = sum(message.role == "assistant" for message in before[last_call:])
        if not remaining or answers >= self.patience:
            return None
        return Action(text=f"What can I do? {self.opening}")

    def _remaining_script(self, before: Sequence[Message]) -> list[ToolCall]:
        """The calls of the script that have not been made."""
        calls_made = Counter(call.name for message in before for call in message.tool_calls)
        remaining = []
        for call in self.script:
            if calls_made[call.name] > 0:
                calls_made[call.name] -= 1
            else:
                remaining.append(call)
        return remaining


def _report_results(messages: Sequence[Message]) -> str:
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    results = (message for message in messages if message.role == "tool")
    return "\n".join(f"{names[str(result.tool_call_id)]}: {result.content}" for result in results)


def _find_named_tools(text: str, tools: Sequence[Tool]) -> Iterator[Tool]:
    """The tools that the text names, in its order; if one name begins another, the longer one counts."""
    by_name = {tool.name.casefold(): tool for tool in tools}
    longest_first = sorted(by_name, key=len, reverse=True)
    forms = "|".join("[_ ]".join(map(re.escape, name.split("_"))) for name in longest_first)
    for match in re.finditer(rf"(?<!\w)(?:{forms})(?!\w)", text.casefold()) if by_name else ():
        yield by_name[match[0].replace(" ", "_")]


def _make_calls(tools: Sequence[Tool], script: Sequence[ToolCall]) -> Iterator[ToolCall]:
    remaining = list(script)
    for tool in tools:
        scripted = next((call for call in remaining if call.name == tool.name), None)
        if scripted is not None:
            remaining.remove(scripted)
            yield scripted
        elif not tool.input_schema.get("required"):
            yield ToolCall(id="", name=tool.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedUser:
    """A user that a model plays, with the user's own tools on offer."""

    policy: ChatPolicy
    scenario: str
    """The model's system prompt."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling settings; the seed is replaced by one for each answer, derived from the episode's."""
    ends: tuple[str, ...] = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
    """Words by which the model ends the conversation: those of tau2."""

    async def reply(self, view: UserView) -> Decision | None:
        """The model's answer; None if the conversation has become longer than the model can read: the user leaves."""
        sampling = replace(self.sampling, seed=derive_seed("user", view.seed, len(view.messages)))
        messages = (Message(role="system", content=self.scenario), *_swap_roles(view.messages))
        try:
            decision = await self.policy.chat(messages, view.tools, sampling)
        except PromptTooLong:
            return None
        if decision.action.tool_calls:
            return decision
        ended = any(end in decision.action.text for end in self.ends)
        return replace(decision, action=Action(text="" if ended else decision.action.text or SILENCE))


def _swap_roles(messages: Sequence[Message]) -> Iterator[Message]:
    """The conversation for a model that plays the user: ``assistant`` is the user, ``user`` the agent."""
    if not messages or messages[0].role == "user":
        yield Message(role="user", content=GREETING)
    other: dict[Role, Role] = {"user": "assistant", "assistant": "user"}
    for message in messages:
        yield replace(message, role=other.get(message.role, message.role))
