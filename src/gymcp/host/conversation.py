"""The agent of a hosted episode: it decides what its client, which reaches it over HTTP, says and calls."""

from __future__ import annotations

import asyncio

from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.agents.endpoint.tool_exchange import ToolExchange, TurnEnded, WaitingCall
from gymcp.errors import PolicyInfraError
from gymcp.outcome import Outcome
from gymcp.types import Action, GiveUp, Message, Observation

Heard = tuple[Message, ...] | None
"""Messages for the agent; None: the episode is over."""
FINISHED_EARLY = "its client finished the episode before the user had left"


class Conversation:
    """An `Agent` on the harness's side. Used in one event loop."""

    def __init__(self) -> None:
        self.exchange = ToolExchange()
        self.opened: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()
        """The first messages, once the world is there."""
        self._answer = self.opened
        """The messages that the client waits for, or has last waited for."""
        self._waits_for_user = True

    # ------------------------------------------------------------------------------------------------- for the harness

    async def act(self, observation: Observation) -> Action | GiveUp:
        """The client's next call, or its message to the user."""
        messages = self.exchange.observe(observation)
        if self._waits_for_user:
            self._hear(messages)
            self._waits_for_user = False
        match await self.exchange.events.get():
            case WaitingCall(call=call):
                return Action(tool_calls=(call,))
            case TurnEnded(text=text):
                self._waits_for_user = True
                return Action(text=text)
            case GiveUp() as end:
                return end
            case PolicyInfraError() as error:
                raise error

    def end(self) -> None:
        """Tell the client that the episode is over: every open and every later request learns it."""
        self.exchange.close()
        self._hear(None)

    def _hear(self, messages: Heard) -> None:
        if not self._answer.done():
            self._answer.set_result(messages)

    # -------------------------------------------------------------------------------------------------- for the client

    async def say(self, text: str) -> Heard:
        """The user's answer. Raises RequestRefused while another message is being answered."""
        if not self._answer.done():
            raise RequestRefused(409, "the user is still answering the message before: wait for that answer", "busy")
        if self.exchange.is_closed:
            return None
        self._answer = asyncio.get_running_loop().create_future()
        self.exchange.events.put_nowait(TurnEnded(text=text))
        return await asyncio.shield(self._answer)  # a client that vanishes does not take the answer with it

    def stop(self, why: str = FINISHED_EARLY) -> None:
        """End the episode as it stands."""
        self.exchange.events.put_nowait(GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=why))
