"""The prompt of an episode as tokens: it only grows, until the tools change or old tool results must be dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gymcp.agents.prompts.rendering import Renderer
from gymcp.types import Message, Observation, Tool, ToolCall

DROPPED = "[dropped: too old for the context]"
"""Text that replaces a dropped tool result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One action and the messages that answered it."""

    sampled: tuple[int, ...]
    calls: tuple[ToolCall, ...]
    answers: tuple[Message, ...]


class Context:
    """The context of one episode. Sampled tokens are never encoded again, even if the rest of the prompt is rebuilt."""

    def __init__(self, renderer: Renderer, system: str = "") -> None:
        self._renderer = renderer
        self._system = system
        self._first: tuple[Message, ...] = ()
        self._tools: tuple[Tool, ...] = ()
        self._turns: list[_Turn] = []
        self._last_action: tuple[tuple[int, ...], tuple[ToolCall, ...]] | None = None
        self.ids: list[int] = []
        """The prompt for the next action."""

    def add_observation(self, observation: Observation) -> None:
        """Append the last action and the new messages to the prompt.

        If other tools are on offer now, the prompt is rebuilt, because a prompt begins with its tools.
        """
        if self._last_action is None:
            self._first, self._tools = observation.messages, observation.tools
            self.ids = self._renderer.first_prompt(self._first, self._tools, self._system)
            return
        sampled, calls = self._last_action
        self._turns.append(_Turn(sampled=sampled, calls=calls, answers=observation.messages))
        if observation.tools != self._tools:
            self._tools = observation.tools
            self._rebuild()
        else:
            self.ids += [*sampled, *self._renderer.continuation(sampled, calls, observation.messages, self._tools)]

    def add_sample(self, sampled: Sequence[int], calls: Sequence[ToolCall]) -> None:
        """Store the tokens and calls of the action taken on `ids`, for the next `add_observation`."""
        self._last_action = (tuple(sampled), tuple(calls))

    def shorten(self, max_tokens: int) -> int:
        """Drop the oldest tool results until at most `max_tokens` are left; return how many results were dropped.

        The prompt is rebuilt, so a new context begins. It may stay longer than `max_tokens`: the results of the newest
        turn are never dropped, because without them the agent would do the same again.
        """
        dropped, size = 0, len(self.ids)
        for place, turn in enumerate(self._turns[:-1]):
            for index, message in enumerate(turn.answers):
                if size <= max_tokens:
                    break
                if message.role == "tool" and message.content != DROPPED:
                    shorter = replace(message, content=DROPPED, is_error=False)
                    answers = (*turn.answers[:index], shorter, *turn.answers[index + 1 :])
                    size -= self._length(turn)
                    turn = replace(turn, answers=answers)  # noqa: PLW2901
                    size += self._length(turn)
                    dropped += 1
            self._turns[place] = turn
        if dropped:
            self._rebuild()
        return dropped

    def _length(self, turn: _Turn) -> int:
        return len(self._renderer.continuation(turn.sampled, turn.calls, turn.answers, self._tools))

    def _rebuild(self) -> None:
        self.ids = self._renderer.first_prompt(self._first, self._tools, self._system)
        for turn in self._turns:
            continuation = self._renderer.continuation(turn.sampled, turn.calls, turn.answers, self._tools)
            self.ids += [*turn.sampled, *continuation]
