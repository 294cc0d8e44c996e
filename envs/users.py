"""Who the agent talks to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gymcp.errors import PromptTooLong
from gymcp.evaluators.graders.questions import ASK_USER, match_facts
from gymcp.protocols import ChatPolicy
from gymcp.seeds import derive_seed
from gymcp.types import Action, Decision, Fact, Message, Role, Sampling, Talk, Tool, ToolCall

ASK_WITH_TOOL = f"If you need something from me, ask with {ASK_USER}; else finish."
DO_NOT_KNOW = "I do not know, and I do not mind."
"""Of a user who is asked for what they have no opinion on."""
GREETING = "Hello. How can I help you?"
"""What a model that plays the user hears first; it must answer something."""
SILENCE = "..."
"""What is heard of a model that says nothing, which does not mean that it leaves."""


@dataclass(frozen=True, slots=True)
class ScriptedUser:
    """Says the task's prompts one after another, whatever the agent says; then nothing."""

    prompts: Sequence[str]

    async def reply(self, talk: Talk) -> Action | None:
        spoken = sum(message.role == "user" and not message.tool_calls for message in talk.messages)
        return Action(text=self.prompts[spoken]) if spoken < len(self.prompts) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskableUser:
    """A scripted user who answers questions that a tool puts to them, and says what they know when it is named."""

    prompts: Sequence[str]
    facts: tuple[Fact, ...] = ()

    async def reply(self, talk: Talk) -> Action | None:
        """Whoever asks aloud is told once how to ask: an answer there would have no price."""
        spoken = [message.content for message in talk.messages if message.role == "user"]
        last = talk.messages[-1].content.rstrip() if talk.messages else ""
        if last.endswith("?") and ASK_WITH_TOOL not in spoken:
            return Action(text=ASK_WITH_TOOL)
        said = sum(text != ASK_WITH_TOOL for text in spoken)
        return Action(text=self.prompts[said]) if said < len(self.prompts) else None

    async def tell(self, question: str) -> str:
        named = match_facts(question, self.facts)
        return " ".join(fact.says for fact in named) or DO_NOT_KNOW


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructedUser:
    """Does what the agent names, with tools of their own, and says what came of it: a script, without a model.

    Tools are named as they are called, or with spaces for the underscores. A call gets the arguments of the script's
    next call of that tool; beyond the script, only tools that need no arguments can be called.
    """

    opening: str
    script: tuple[ToolCall, ...] = ()
    """The calls they know how to make: the user's part of a task's gold."""
    patience: int = 2
    """How often in a row they answer an agent who names nothing, while something is left of the script; then they
    leave. With nothing left they leave at once."""

    async def reply(self, talk: Talk) -> Action | None:
        if not talk.messages:
            return Action(text=self.opening)
        at = max(place for place, message in enumerate(talk.messages) if message.role == "assistant")
        before, said, since = talk.messages[:at], talk.messages[at].content, talk.messages[at + 1 :]
        if since:
            names = {call.id: call.name for message in since for call in message.tool_calls}
            results = (message for message in since if message.role == "tool")
            return Action(text="\n".join(f"{names[str(each.tool_call_id)]}: {each.content}" for each in results))
        left = self._left(before)
        named = list(_named(said, talk.tools))
        if calls := list(_made(named, left)):
            return Action(tool_calls=tuple(calls))
        if named:
            return Action(text=f"I do not know with what: {', '.join(tool.name for tool in named)}.")
        last_act = max((place for place, message in enumerate(before) if message.tool_calls), default=0)
        answered = sum(message.role == "assistant" for message in before[last_act:])
        if not left or answered >= self.patience:
            return None
        return Action(text=f"What can I do? {self.opening}")

    def _left(self, before: Sequence[Message]) -> list[ToolCall]:
        """What of the script has not been done."""
        done = Counter(call.name for message in before for call in message.tool_calls)
        left = []
        for call in self.script:
            if done[call.name] > 0:
                done[call.name] -= 1
            else:
                left.append(call)
        return left


def _named(said: str, tools: Sequence[Tool]) -> Iterator[Tool]:
    """The tools that the words name, in their order, the longest name where one begins another."""
    by_name = {tool.name.casefold(): tool for tool in tools}
    longest_first = sorted(by_name, key=len, reverse=True)
    forms = "|".join("[_ ]".join(map(re.escape, name.split("_"))) for name in longest_first)
    for found in re.finditer(rf"(?<!\w)(?:{forms})(?!\w)", said.casefold()) if by_name else ():
        yield by_name[found[0].replace(" ", "_")]


def _made(named: Sequence[Tool], left: Sequence[ToolCall]) -> Iterator[ToolCall]:
    waiting = list(left)
    for tool in named:
        known = next((call for call in waiting if call.name == tool.name), None)
        if known is not None:
            waiting.remove(known)
            yield known
        elif not tool.input_schema.get("required"):
            yield ToolCall(id="", name=tool.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedUser:
    """A user whom a model plays, with the user's own tools on offer."""

    policy: ChatPolicy
    scenario: str
    """The model's system prompt."""
    sampling: Sampling = field(default_factory=Sampling)
    """Its seed is replaced by one for each answer, made from the episode's."""
    ends: tuple[str, ...] = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
    """Words by which the model says that the talk is over: tau2's."""

    async def reply(self, talk: Talk) -> Decision | None:
        """None, too, where the talk has become longer than the model can read: the user has had enough."""
        sampling = replace(self.sampling, seed=derive_seed("user", talk.seed, len(talk.messages)))
        messages = (Message(role="system", content=self.scenario), *as_the_user_sees(talk))
        try:
            decided = await self.policy.chat(messages, talk.tools, sampling)
        except PromptTooLong:
            return None
        if decided.action.tool_calls:
            return decided
        over = any(end in decided.action.text for end in self.ends)
        return replace(decided, action=Action(text="" if over else decided.action.text or SILENCE))


def as_the_user_sees(talk: Talk) -> Iterator[Message]:
    """The talk with its sides changed, as a model that plays the user takes it: ``assistant`` is the user."""
    if not talk.messages or talk.messages[0].role == "user":
        yield Message(role="user", content=GREETING)
    other: dict[Role, Role] = {"user": "assistant", "assistant": "user"}
    for message in talk.messages:
        yield replace(message, role=other.get(message.role, message.role))
