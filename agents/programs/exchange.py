"""A live episode between a program, which asks the model and calls tools, and the harness, which steps once a call."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Mapping
from dataclasses import replace

from gymcp.agents.endpoint.http_server import HeldRequests, RequestRefused
from gymcp.agents.endpoint.tool_exchange import EPISODE_ENDED, Event, ToolExchange, TurnEnded, WaitingCall
from gymcp.agents.policies.models import Model
from gymcp.agents.programs.answers import Answers
from gymcp.agents.programs.contexts import Contexts
from gymcp.agents.programs.requests import ModelAnswer, ModelRequest
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.programs.shared_budget import BudgetExhausted, SharedBudget
from gymcp.agents.tool_calls.parsing import CallIds
from gymcp.aio import find_deadline, share_deadline
from gymcp.errors import PolicyInfraError, PromptTooLong
from gymcp.outcome import Outcome
from gymcp.seeds import derive_seed
from gymcp.types import Action, Decision, GiveUp, ModelUsage, Observation, Sampling, SideAnswer


class Exchange:
    """Used in one event loop. The program's requests reach it through the gateway, by its token."""

    def __init__(self, model: Model | None, settings: ProgramSettings, seed: int) -> None:
        self.token = secrets.token_urlsafe(24)
        """Key of the program for its tools and its model, in this episode only."""
        self._settings = settings
        self._seed = seed
        self._new_id = CallIds()
        self.tool_exchange = ToolExchange(self._new_id)
        self._budget = SharedBudget(settings.budget)
        self._contexts = Contexts(model, self._new_id) if model is not None else None
        self._answers = Answers()
        self._count = 0
        self._deadline = math.inf
        """Time of the event loop at which the agent's time is over, by the harness's last observation."""
        self.requests = HeldRequests()

    @property
    def events(self) -> asyncio.Queue[Event]:
        """Acts of the program that the harness must answer, in order."""
        return self.tool_exchange.events

    # ------------------------------------------------------------------------------------------------- for the program

    async def ask_model(self, request: ModelRequest, model: str) -> ModelAnswer:
        """The model's answer. Raises RequestRefused; what the engine's failure means for the episode is an event."""
        if self.tool_exchange.is_closed:
            raise RequestRefused(410, EPISODE_ENDED, "episode_ended")
        if self._contexts is None:
            raise RequestRefused(404, "this run has no model: name one with --policy", "no_model")
        number, self._count = self._count, self._count + 1
        most = self._settings.sampling.max_tokens
        asked = min(most, max(1, request.max_tokens or most))
        try:
            async with self._budget.reserve(asked) as granted:
                sampling = self._choose_sampling(request, number, granted)
                with share_deadline(self._deadline):
                    decision, stop = await self._contexts.answer(request, sampling)
                self._budget.spend(decision.spent or ModelUsage(model=""))
        except BudgetExhausted as error:
            self.events.put_nowait(GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=str(error)))
            raise RequestRefused(429, f"the budget of the episode is exhausted: {error}", "budget_exhausted") from error
        except PromptTooLong as error:
            raise RequestRefused(400, f"context: {error}", "context_length_exceeded") from error
        except PolicyInfraError as error:
            self.events.put_nowait(error)
            raise RequestRefused(503, f"the model does not answer: {error}", "model_unavailable") from error
        self._answers.add(decision, request.messages[-1].content)
        return ModelAnswer(
            id=f"{number:05d}",
            model=model,
            decision=decision,
            namespaces=request.namespaces,
            streams_usage=request.streams_usage,
            stop_text=stop,
        )

    def _choose_sampling(self, request: ModelRequest, number: int, max_tokens: int) -> Sampling:
        """The run's sampling settings for one request, with what the program asks for."""
        sampling = self._settings.sampling
        return replace(
            sampling,
            max_tokens=max_tokens,
            stop=(*sampling.stop, *(stop for stop in request.stop if stop)),
            seed=derive_seed(self._seed, number),
        )

    # ------------------------------------------------------------------------------------------------- for the harness

    def observe(self, observation: Observation) -> str | None:
        """Give the program the results of its calls and the tools on offer; return what the user says, if it speaks."""
        self._deadline = find_deadline()
        messages = self.tool_exchange.observe(observation)
        return "\n\n".join(message.content for message in messages) if messages else None

    def decide_call(self, waiting: WaitingCall) -> Decision:
        """The step that runs a call of the program."""
        arguments = waiting.call.arguments
        answer = self._answers.take_for_call(waiting.call.name, arguments if isinstance(arguments, Mapping) else {})
        offered = frozenset(tool.name for tool in self.tool_exchange.tools)
        return self._answers.decide(answer, Action(tool_calls=(waiting.call,)), offered)

    def decide_end(self, ended: TurnEnded) -> Decision:
        """The step that ends the program's turn: with its text, or the model's last one if it said nothing."""
        answer = self._answers.take_for_end(ended.text)
        text = ended.text or (answer.decision.action.text if answer is not None else "")
        return self._answers.decide(answer, Action(text=text))

    def give_up(self, end: GiveUp) -> GiveUp:
        """The end of the episode, with the answers that are no step."""
        return replace(end, side_answers=self.take_rest())

    def take_rest(self) -> tuple[SideAnswer, ...]:
        """The answers that are no step, at the end of the episode."""
        return self._answers.take_rest()

    def close(self) -> None:
        """End the episode for the program: its open calls and every later request get an error."""
        self.tool_exchange.close()
