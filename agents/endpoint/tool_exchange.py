"""The tools of a live episode between an agent outside the harness, which calls them, and the harness, which steps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from gymcp.agents.tool_calls.parsing import CallIds
from gymcp.errors import PolicyInfraError
from gymcp.types import GiveUp, Json, Message, Observation, Tool, ToolCall

MAX_WAITING_CALLS = 256
"""Calls that may wait for their turn; further ones get an error."""
EPISODE_ENDED = "the episode has ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A call of the agent that the harness has not run yet, or whose result has not been observed."""

    call: ToolCall
    result: asyncio.Future[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """The agent has ended its turn with this text."""

    text: str


Event = WaitingCall | TurnEnded | GiveUp | PolicyInfraError


class ToolExchange:
    """Used in one event loop. The agent's calls reach it over HTTP."""

    def __init__(self, new_id: CallIds | None = None) -> None:
        """`new_id`: source of the calls' ids; None: the ids of the episode have no other source."""
        self.tools: tuple[Tool, ...] = ()
        """Tools on offer now."""
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        """Acts of the agent that the harness must answer, in order."""
        self.is_closed = False
        self._new_id = new_id or CallIds()
        self._waiting: dict[str, WaitingCall] = {}
        self._listed: tuple[Tool, ...] | None = None
        """Tools that the agent was last given as a list; None: none yet, or it knows that they have changed."""

    def list_tools(self) -> tuple[Tool, ...]:
        """The tools on offer, for an agent that asks for the list."""
        self._listed = self.tools
        return self.tools

    @property
    def has_change(self) -> bool:
        """True if the tools on offer are no longer those of the last list, and the agent does not know it."""
        return self._listed is not None and self._listed != self.tools

    def take_change(self) -> bool:
        """`has_change`, which is True once: the caller tells the agent."""
        if not self.has_change:
            return False
        self._listed = None
        return True

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> Message:
        """The result of a call, once the harness has run it."""
        if self.is_closed:
            return Message(role="tool", content=EPISODE_ENDED, is_error=True)
        if len(self._waiting) >= MAX_WAITING_CALLS:
            return Message(role="tool", content=f"more than {MAX_WAITING_CALLS} calls at a time", is_error=True)
        call = ToolCall(id=self._new_id(), name=name, arguments=arguments)
        waiting = WaitingCall(call=call, result=asyncio.get_running_loop().create_future())
        self._waiting[call.id] = waiting
        self.events.put_nowait(waiting)
        try:
            return await waiting.result
        finally:
            self._waiting.pop(call.id, None)

    def observe(self, observation: Observation) -> tuple[Message, ...]:
        """Give the agent the results of its calls and the tools on offer; return the messages that are no results."""
        self.tools = observation.tools
        for message in observation.messages:
            waiting = self._waiting.get(message.tool_call_id or "")
            if message.role == "tool" and waiting is not None and not waiting.result.done():
                waiting.result.set_result(message)
        return tuple(message for message in observation.messages if message.role != "tool")

    def close(self) -> None:
        """End the episode for the agent: its open calls and every later one get an error."""
        self.is_closed = True
        for waiting in self._waiting.values():
            if not waiting.result.done():
                waiting.result.set_result(Message(role="tool", content=EPISODE_ENDED, is_error=True))
