"""The agent that thinks, calls tools, reads what they answer, and goes on until it has nothing left to call.

Over a `Policy` it keeps the context in tokens, over a `ChatPolicy` in messages. What the model does wrong it is told;
what runs out ends the episode.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from gymcp.agents.policies.models import LEAST_ANSWER, ChatModel, Model, TokenModel
from gymcp.agents.prompts.context import DROPPED, Context
from gymcp.agents.prompts.rendering import under_one_system
from gymcp.agents.strategies.budgets import Budget, Purse
from gymcp.agents.tool_calls.parsing import CallIds, parse_action
from gymcp.errors import PromptTooLong
from gymcp.protocols import Agent, AgentFactory
from gymcp.types import Action, Decision, GiveUp, Message, ModelUsage, Observation, Outcome, Sampling, Task, ToolCall

Overflow = Literal["stop", "drop"]

KEPT = 0.5
"""Share of the context that is filled again after old results were dropped: not every turn opens a new one."""
EMPTY = "the answer is empty: say something, or call a tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactSettings:
    sampling: Sampling = field(default_factory=Sampling)
    """Its seed is replaced by one for each answer, made from the episode's."""
    budget: Budget = field(default_factory=Budget)
    overflow: Overflow = "stop"
    """What happens when the context is full: the episode ends as ``budget_exhausted``, or the oldest tool results are
    dropped, which opens a new context. The outcome's reason says so."""
    system: str = ""
    max_unusable: int = 3
    """Answers in a row that say nothing and call nothing; then the episode is an ``agent_error``."""


def react(model: Model, settings: ReactSettings) -> AgentFactory:
    """A new agent for every episode."""

    def make(task: Task, seed: int) -> Agent:
        if isinstance(model, TokenModel):
            return ReactAgent(_Tokens(model, settings, seed), settings)
        return ReactAgent(_Chat(model, settings, seed), settings)

    return make


class _Conversation(Protocol):
    """How an agent talks with its kind of model."""

    def see(self, observation: Observation) -> None: ...

    async def answer(self, max_tokens: int) -> Decision:
        """Raises PromptTooLong."""
        ...

    def shorten(self) -> int:
        """How many tool results were dropped; 0: there is nothing left to drop."""
        ...


class ReactAgent:
    """Lives for one episode."""

    def __init__(self, conversation: _Conversation, settings: ReactSettings) -> None:
        self._conversation = conversation
        self._settings = settings
        self._purse = Purse(settings.budget)
        self._unusable = 0
        self._dropped = 0

    async def act(self, observation: Observation) -> Decision | GiveUp:
        if self._unusable >= self._settings.max_unusable:
            return GiveUp(
                outcome=Outcome.AGENT_ERROR, reason=f"nothing usable in {self._unusable} answers one after another"
            )
        if empty := self._purse.empty:
            return GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=empty)
        self._conversation.see(observation)
        started = time.perf_counter()
        before = self._dropped
        decided = await self._in_time(self._answer())
        if isinstance(decided, GiveUp):
            return decided
        self._purse.pay(decided.spent or ModelUsage(model=""), time.perf_counter() - started)
        self._unusable = 0 if decided.action.is_usable else self._unusable + 1
        if self._dropped > before:
            decided = replace(decided, reason=f"the context was full: {self._dropped} old tool results were dropped")
        return decided

    async def _in_time(self, work: Awaitable[Decision | GiveUp]) -> Decision | GiveUp:
        try:
            async with asyncio.timeout(self._purse.seconds_left) as bound:
                return await work
        except TimeoutError:
            if not bound.expired():
                raise
            why = f"{self._settings.budget.seconds:g} s of the model's time"
            return GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=why)

    async def _answer(self) -> Decision | GiveUp:
        """The model's answer, in a shorter context where the whole is too long and the rule allows it."""
        while True:
            try:
                return await self._conversation.answer(self._purse.tokens_left(self._settings.sampling.max_tokens))
            except PromptTooLong as error:
                dropped = self._conversation.shorten() if self._settings.overflow == "drop" else 0
                if not dropped:
                    return GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=f"context: {error}")
                self._dropped += dropped


class _Tokens:
    """Tokens in, tokens out: the context is what the policy has seen, to the token."""

    def __init__(self, model: TokenModel, settings: ReactSettings, seed: int) -> None:
        self._model = model
        self._sampling = settings.sampling
        self._seed = seed
        self._context = Context(model.renderer, settings.system)
        self._observation = Observation(messages=(), tools=())
        self._new_id = CallIds()
        self._answers = 0

    def see(self, observation: Observation) -> None:
        self._observation = observation
        self._context.see(observation)

    def shorten(self) -> int:
        return self._context.shorten(int(KEPT * (self._model.context - LEAST_ANSWER)))

    async def answer(self, max_tokens: int) -> Decision:
        model, prompt = self._model, self._context.ids
        room = model.context - len(prompt)
        if room < LEAST_ANSWER:
            raise PromptTooLong(f"{len(prompt)} tokens, and no room for an answer among {model.context}")
        sampling = replace(
            self._sampling, max_tokens=min(max_tokens, room), seed=answer_seed(self._seed, self._answers)
        )
        sampled = await model.policy.sample(prompt, sampling)
        self._answers += 1
        action = parse_action(model.renderer.text(sampled.ids), self._observation.tools, model.read, self._new_id)
        action = never_empty(action, self._new_id)
        self._context.draw(sampled.ids, action.tool_calls)
        spent = ModelUsage(
            model=model.name,
            prompt_tokens=len(prompt),
            completion_tokens=len(sampled.ids),
            cost=model.price.of(len(prompt), len(sampled.ids)),
        )
        return Decision(action=action, sampled=sampled, spent=spent)


class _Chat:
    """Messages in, an action out."""

    def __init__(self, model: ChatModel, settings: ReactSettings, seed: int) -> None:
        self._model = model
        self._sampling = settings.sampling
        self._seed = seed
        self._system = settings.system
        self._messages: list[Message] = []
        self._tools: Observation = Observation(messages=(), tools=())
        self._new_id = CallIds()
        self._answers = 0

    def see(self, observation: Observation) -> None:
        self._tools = observation
        if not self._messages:
            self._messages = under_one_system(self._system, observation.messages)
        else:
            self._messages += observation.messages

    def shorten(self) -> int:
        results = [
            place
            for place, message in enumerate(self._messages)
            if message.role == "tool" and message.content != DROPPED
        ]
        oldest = results[: len(results) // 2]
        for place in oldest:
            self._messages[place] = replace(self._messages[place], content=DROPPED, is_error=False)
        return len(oldest)

    async def answer(self, max_tokens: int) -> Decision:
        sampling = replace(self._sampling, max_tokens=max_tokens, seed=answer_seed(self._seed, self._answers))
        decided = await self._model.policy.chat(self._messages, self._tools.tools, sampling)
        self._answers += 1
        # an endpoint's own ids may repeat within an episode
        calls = tuple(replace(call, id=self._new_id()) for call in decided.action.tool_calls)
        action = never_empty(replace(decided.action, tool_calls=calls), self._new_id)
        self._messages.append(Message(role="assistant", content=action.text, tool_calls=action.tool_calls))
        return replace(decided, action=action)


def never_empty(action: Action, new_id: CallIds) -> Action:
    """The action, or where it says and calls nothing, one that is answered with an error: silence ends no user turn."""
    if action.text or action.tool_calls:
        return action
    return Action(tool_calls=(ToolCall(id=new_id(), name="", parse_error=EMPTY),))


def answer_seed(episode: int, answer: int) -> int:
    """A seed for each answer of an episode, of 31 bits: some engines take no more."""
    return int.from_bytes(hashlib.sha256(f"{episode}/{answer}".encode()).digest()[:4], "big") >> 1
