"""The ReAct agent: it calls tools and reads their results until it answers without a call.

Over a `Policy` the agent keeps its context in tokens, over a `ChatPolicy` in messages. A mistake of the model is
answered with an error; an exhausted budget or context ends the episode.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from gymcp.agents.policies.models import MIN_ANSWER_TOKENS, ChatModel, Model, TokenModel
from gymcp.agents.prompts.context import DROPPED, Context
from gymcp.agents.prompts.rendering import merge_system_messages
from gymcp.agents.strategies.budgets import Budget, BudgetTracker
from gymcp.agents.tool_calls.parsing import CallIds, parse_action
from gymcp.aio import limit_wait
from gymcp.errors import PolicyInfraError, PromptTooLong
from gymcp.outcome import Outcome
from gymcp.protocols import Agent, AgentFactory
from gymcp.seeds import derive_seed
from gymcp.types import (
    Action,
    Decision,
    GiveUp,
    Message,
    ModelUsage,
    Observation,
    Sampling,
    Step,
    Task,
    ToolCall,
)

Overflow = Literal["stop", "drop"]

REFILL_SHARE = 0.5
"""Share of the context that may be in use after old tool results were dropped: not every turn then opens a new one."""
EMPTY_ANSWER = "the answer is empty: say something, or call a tool"
"""Error that the model is given for an answer with neither text nor calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactSettings:
    """Settings that are the same in all episodes of a run."""

    sampling: Sampling = field(default_factory=Sampling)
    """Sampling settings; the seed is replaced for each answer by one derived from the episode's seed."""
    budget: Budget = field(default_factory=Budget)
    overflow: Overflow = "stop"
    """Reaction to a full context. ``stop``: the episode ends as ``budget_exhausted``. ``drop``: the oldest tool results
    are dropped, which opens a new context, and the outcome's reason says so."""
    system: str = ""
    """System prompt, in front of a system message of the task."""
    max_unusable: int = 3
    """Number of consecutive answers with neither text nor a valid call that make the episode an ``agent_error``."""


def react(model: Model, settings: ReactSettings) -> AgentFactory:
    """A new agent for every episode."""

    def make(task: Task, seed: int) -> Agent:
        if isinstance(model, TokenModel):
            return ReactAgent(_TokenConversation(model, settings, seed), settings)
        return ReactAgent(_ChatConversation(model, settings, seed), settings)

    return make


class _Conversation(Protocol):
    """The conversation of one episode with a model of one kind."""

    def add_observation(self, observation: Observation) -> None: ...

    async def answer(self, max_tokens: int) -> Decision:
        """Ask the model for its next action. Raises PromptTooLong."""
        ...

    def shorten(self) -> int:
        """Drop old tool results; return how many were dropped, 0 if none is left to drop."""
        ...

    def recall(self, step: Step) -> ModelUsage:
        """Add a recorded step, as if the model had just given its action; return the use of the model for it.

        Raises PolicyInfraError.
        """
        ...


class ReactAgent:
    """The agent of one episode."""

    def __init__(self, conversation: _Conversation, settings: ReactSettings) -> None:
        self._conversation = conversation
        self._settings = settings
        self._budget = BudgetTracker(settings.budget)
        self._unusable = 0
        self._dropped = 0

    def resume(self, steps: Sequence[Step]) -> None:
        """Rebuild the context from the record; what its answers have taken counts for the budget.

        Raises PolicyInfraError if the rebuilt prompt is not the one that the model read.
        """
        for step in steps:
            self._budget.spend(self._conversation.recall(step), step.agent_s)
            self._unusable = 0 if step.valid else self._unusable + 1

    async def act(self, observation: Observation) -> Decision | GiveUp:
        if self._unusable >= self._settings.max_unusable:
            return GiveUp(
                outcome=Outcome.AGENT_ERROR, reason=f"nothing usable in {self._unusable} answers one after another"
            )
        if exhausted := self._budget.exhausted:
            return GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=exhausted)
        self._conversation.add_observation(observation)
        started = time.perf_counter()
        dropped_before = self._dropped
        decision = await self._in_time(self._answer())
        if isinstance(decision, GiveUp):
            return decision
        self._budget.spend(decision.spent or ModelUsage(model=""), time.perf_counter() - started)
        self._unusable = 0 if decision.action.is_usable else self._unusable + 1
        if self._dropped > dropped_before:
            decision = replace(decision, reason=f"the context was full: {self._dropped} old tool results were dropped")
        return decision

    async def _in_time(self, work: Awaitable[Decision | GiveUp]) -> Decision | GiveUp:
        """The result of `work`, or the end of the episode if the budget of seconds runs out first."""
        try:
            async with limit_wait(self._budget.seconds_left) as deadline:
                return await work
        except TimeoutError:
            if not deadline.expired():
                raise
            why = f"{self._settings.budget.seconds:g} s of the agent's time"
            return GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=why)

    async def _answer(self) -> Decision | GiveUp:
        """The model's answer; if the context is full and `overflow` allows it, the answer in a shorter context."""
        while True:
            try:
                return await self._conversation.answer(self._budget.tokens_left(self._settings.sampling.max_tokens))
            except PromptTooLong as error:
                dropped = self._conversation.shorten() if self._settings.overflow == "drop" else 0
                if not dropped:
                    return GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=f"context: {error}")
                self._dropped += dropped


class _TokenConversation:
    """Tokens in, tokens out: the context is exactly the tokens that the policy has read and sampled."""

    def __init__(self, model: TokenModel, settings: ReactSettings, seed: int) -> None:
        self._model = model
        self._sampling = settings.sampling
        self._seed = seed
        self._context = Context(model.renderer, settings.system)
        self._observation = Observation(messages=(), tools=())
        self._new_id = CallIds()
        self._answers = 0

    def add_observation(self, observation: Observation) -> None:
        self._observation = observation
        self._context.add_observation(observation)

    def recall(self, step: Step) -> ModelUsage:
        self.add_observation(step.observation)
        usage = step.model_usage or ModelUsage(model="")
        if step.sampled is None:  # a controller put the action in the place of the model's
            ids: Sequence[int] = self._model.renderer.encode_action(step.action, step.observation.tools)
        else:
            ids, usage = step.sampled.ids, self._model.measure_usage(step.sampled.prompt_ids, step.sampled.ids)
            while tuple(self._context.ids) != step.sampled.prompt_ids:
                if not self.shorten():
                    raise PolicyInfraError(
                        f"model '{self._model.name}': the prompt of answer {self._answers + 1} cannot be rebuilt from"
                        " the record: its tokens differ from those that the model read"
                    )
        self._answers += 1
        self._new_id.skip(len(step.action.tool_calls))
        self._context.add_sample(ids, step.action.tool_calls)
        return usage

    def shorten(self) -> int:
        return self._context.shorten(int(REFILL_SHARE * (self._model.context - MIN_ANSWER_TOKENS)))

    async def answer(self, max_tokens: int) -> Decision:
        sampling = replace(self._sampling, max_tokens=max_tokens, seed=derive_seed(self._seed, self._answers))
        answer = await self._model.generate(self._context.ids, sampling)
        self._answers += 1
        action = parse_action(answer.text, self._observation.tools, self._model.parse_calls, self._new_id)
        action = reject_empty(action, self._new_id)
        self._context.add_sample(answer.sampled.ids, action.tool_calls)
        return Decision(action=action, sampled=answer.sampled, spent=answer.usage, request_times=answer.times)


class _ChatConversation:
    """Messages in, an action out."""

    def __init__(self, model: ChatModel, settings: ReactSettings, seed: int) -> None:
        self._model = model
        self._sampling = settings.sampling
        self._seed = seed
        self._system = settings.system
        self._messages: list[Message] = []
        self._context = 0
        """Number of the model's context: one more each time that old results were dropped."""
        self._observation = Observation(messages=(), tools=())
        self._new_id = CallIds()
        self._answers = 0

    def add_observation(self, observation: Observation) -> None:
        self._observation = observation
        if not self._messages:
            self._messages = merge_system_messages(self._system, observation.messages)
        else:
            self._messages += observation.messages

    def recall(self, step: Step) -> ModelUsage:
        self.add_observation(step.observation)
        while self._context < (step.context or 0):
            if not self.shorten():
                raise PolicyInfraError(
                    f"model '{self._model.name}': the prompt of answer {self._answers + 1} cannot be rebuilt from the"
                    f" record: it is of context {step.context}, and no further tool result is left to drop"
                )
        self._answers += 1
        self._new_id.skip(len(step.action.tool_calls))
        self._messages.append(step.action.to_message())
        return step.model_usage or ModelUsage(model="")

    def shorten(self) -> int:
        results = [
            place
            for place, message in enumerate(self._messages)
            if message.role == "tool" and message.content != DROPPED
        ]
        oldest = results[: len(results) // 2]
        for place in oldest:
            self._messages[place] = replace(self._messages[place], content=DROPPED, is_error=False)
        self._context += bool(oldest)
        return len(oldest)

    async def answer(self, max_tokens: int) -> Decision:
        sampling = replace(self._sampling, max_tokens=max_tokens, seed=derive_seed(self._seed, self._answers))
        decision = await self._model.policy.chat(self._messages, self._observation.tools, sampling)
        self._answers += 1
        # an endpoint's own ids may repeat within an episode
        calls = tuple(replace(call, id=self._new_id()) for call in decision.action.tool_calls)
        action = reject_empty(replace(decision.action, tool_calls=calls), self._new_id)
        self._messages.append(action.to_message())
        return replace(decision, action=action, context=self._context or None)


def reject_empty(action: Action, new_id: CallIds) -> Action:
    """The action; if it has neither text nor calls, one that is answered with an error: silence ends no user turn."""
    if action.text or action.tool_calls:
        return action
    return Action(tool_calls=(ToolCall(id=new_id(), name="", parse_error=EMPTY_ANSWER),))
