"""A live episode between a program, which asks the model and calls tools, and the harness, which steps once a call."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.agents.endpoint.tool_exchange import EPISODE_ENDED, Event, ToolExchange, TurnEnded, WaitingCall
from gymcp.agents.policies.models import Model, TokenModel
from gymcp.agents.programs.contexts import TokenContexts
from gymcp.agents.programs.requests import ModelAnswer, ModelRequest
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.strategies.budgets import BudgetTracker
from gymcp.agents.tool_calls.parsing import CallIds
from gymcp.errors import PolicyInfraError, PromptTooLong
from gymcp.outcome import Outcome
from gymcp.seeds import derive_seed
from gymcp.types import Action, Decision, GiveUp, Json, ModelUsage, Observation, ToolCall


@dataclass(slots=True)
class _Pending:
    """An answer of the model that belongs to no step yet, or of whose calls the program may still make some."""

    decision: Decision
    calls: list[ToolCall]
    is_recorded: bool = False
    """True if a step has the answer's tokens."""


@dataclass(slots=True)
class _Answers:
    """The answers since the last step, oldest first."""

    pending: list[_Pending] = field(default_factory=list)

    def add(self, decision: Decision) -> None:
        self.pending.append(_Pending(decision=decision, calls=list(decision.action.tool_calls)))

    def take_for_call(self, name: str, arguments: Mapping[str, Json]) -> tuple[_Pending | None, ToolCall | None]:
        """The answer that asked for the call, and the call in it.

        The program may offer a tool to its model under a longer name, such as ``mcp__gymcp__pay``. If no answer asks
        for the call, the newest answer without a step is its cause: programs may read calls out of texts.
        """
        for answer in reversed(self.pending):
            for call in answer.calls:
                if call.name.endswith(name) and call.arguments == arguments:
                    answer.calls.remove(call)
                    return answer, call
        return self._newest(), None

    def take_for_end(self) -> _Pending | None:
        """The answer that ended the turn: the newest without a step, one without calls before others."""
        final = [answer for answer in self.pending if not answer.is_recorded and not answer.calls]
        return final[-1] if final else self._newest()

    def _newest(self) -> _Pending | None:
        return next((answer for answer in reversed(self.pending) if not answer.is_recorded), None)

    def record(self, answer: _Pending | None, action: Action) -> Decision:
        """The decision of a step: the action, with the tokens of `answer` and the cost of all answers since the last.

        Answers whose calls the program may still make stay.
        """
        new = [each for each in self.pending if not each.is_recorded]
        first = answer is not None and not answer.is_recorded
        decision = Decision(
            action=action,
            sampled=answer.decision.sampled if answer is not None and first else None,
            reasoning=answer.decision.reasoning if answer is not None and first else "",
            request_times=answer.decision.request_times if answer is not None and first else None,
            spent=add_usage(each.decision.spent for each in new),
        )
        for each in new:
            each.is_recorded = True
        self.pending = [each for each in self.pending if each.calls]
        return decision


class Exchange:
    """Used in one event loop. The program's requests reach it through the gateway, by its token."""

    def __init__(self, model: Model | None, settings: ProgramSettings, seed: int) -> None:
        self.token = secrets.token_urlsafe(24)
        """Key of the program for its tools and its model, in this episode only."""
        self._model = model
        self._settings = settings
        self._seed = seed
        self._new_id = CallIds()
        self.tool_exchange = ToolExchange(self._new_id)
        self._budget = BudgetTracker(settings.budget)
        self._contexts = TokenContexts(model, self._new_id) if isinstance(model, TokenModel) else None
        self._answers = _Answers()
        self._count = 0

    @property
    def events(self) -> asyncio.Queue[Event]:
        """Acts of the program that the harness must answer, in order."""
        return self.tool_exchange.events

    # ------------------------------------------------------------------------------------------------- for the program

    async def ask_model(self, request: ModelRequest, model: str) -> ModelAnswer:
        """The model's answer. Raises RequestRefused; what the engine's failure means for the episode is an event."""
        if self.tool_exchange.is_closed:
            raise RequestRefused(410, EPISODE_ENDED, "episode_ended")
        if self._model is None:
            raise RequestRefused(404, "this run has no model: name one with --policy", "no_model")
        if exhausted := self._budget.exhausted:
            self.events.put_nowait(GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=exhausted))
            raise RequestRefused(429, f"the budget of the episode is exhausted: {exhausted}", "budget_exhausted")
        try:
            decision = await self._decide(request, self._model)
        except PromptTooLong as error:
            raise RequestRefused(400, f"context: {error}", "context_length_exceeded") from error
        except PolicyInfraError as error:
            self.events.put_nowait(error)
            raise RequestRefused(503, f"the model does not answer: {error}", "model_unavailable") from error
        self._budget.spend(decision.spent or ModelUsage(model=""), 0.0)
        self._answers.add(decision)
        return ModelAnswer(id=f"{self._count:05d}", model=model, decision=decision)

    async def _decide(self, request: ModelRequest, model: Model) -> Decision:
        sampling = self._settings.sampling
        asked = min(sampling.max_tokens, max(1, request.max_tokens or sampling.max_tokens))
        sampling = replace(
            sampling,
            max_tokens=self._budget.tokens_left(asked),
            stop=(*sampling.stop, *(stop for stop in request.stop if stop)),
            seed=derive_seed(self._seed, self._count),
        )
        self._count += 1
        if self._contexts is not None:
            return await self._contexts.answer(request, sampling)
        assert not isinstance(model, TokenModel)
        decision = await model.policy.chat(request.messages, request.tools, sampling)
        # an endpoint's own ids may repeat within an episode
        calls = tuple(replace(call, id=self._new_id()) for call in decision.action.tool_calls)
        return replace(decision, action=replace(decision.action, tool_calls=calls))

    # ------------------------------------------------------------------------------------------------- for the harness

    def observe(self, observation: Observation) -> str:
        """Give the program the results of its calls and the tools on offer; return what the user says."""
        return "\n\n".join(message.content for message in self.tool_exchange.observe(observation))

    def decide_call(self, waiting: WaitingCall) -> Decision:
        """The step that runs a call of the program."""
        arguments = waiting.call.arguments
        answer, _ = self._answers.take_for_call(waiting.call.name, arguments if isinstance(arguments, Mapping) else {})
        return self._answers.record(answer, Action(tool_calls=(waiting.call,)))

    def decide_end(self, ended: TurnEnded) -> Decision:
        """The step that ends the program's turn: with its text, or the model's last one if it said nothing."""
        answer = self._answers.take_for_end()
        text = ended.text or (answer.decision.action.text if answer is not None else "")
        decision = self._answers.record(answer, Action(text=text))
        self._answers.pending.clear()
        return decision

    def close(self) -> None:
        """End the episode for the program: its open calls and every later request get an error."""
        self.tool_exchange.close()


def add_usage(usages: Iterable[ModelUsage | None]) -> ModelUsage | None:
    """The sum of what answers of one model took; None if none is known."""
    known = [usage for usage in usages if usage is not None]
    if not known:
        return None
    return ModelUsage(
        model=known[0].model,
        prompt_tokens=sum(usage.prompt_tokens for usage in known),
        completion_tokens=sum(usage.completion_tokens for usage in known),
        cost=sum(usage.cost for usage in known),
    )
