"""The tokens an episode's policy has seen and drawn: a list that grows, until something in it must change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gymcp.agents.prompts.rendering import Renderer
from gymcp.types import Message, Observation, Tool, ToolCall

DROPPED = "[dropped: too old for the context]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    drawn: tuple[int, ...]
    calls: tuple[ToolCall, ...]
    answers: tuple[Message, ...]


class Context:
    """One episode's context. What was drawn stays as it was drawn, in a new context too."""

    def __init__(self, renderer: Renderer, system: str = "") -> None:
        self._renderer = renderer
        self._system = system
        self._first: tuple[Message, ...] = ()
        self._tools: tuple[Tool, ...] = ()
        self._turns: list[_Turn] = []
        self._drawn: tuple[tuple[int, ...], tuple[ToolCall, ...]] | None = None
        self.ids: list[int] = []
        """The prompt of the coming action."""

    def see(self, observation: Observation) -> None:
        """Adds what is new. Where other tools are on offer now, that is a new context: they stand at its beginning."""
        if self._drawn is None:
            self._first, self._tools = observation.messages, observation.tools
            self.ids = self._renderer.start(self._first, self._tools, self._system)
            return
        drawn, calls = self._drawn
        self._turns.append(_Turn(drawn=drawn, calls=calls, answers=observation.messages))
        if observation.tools != self._tools:
            self._tools = observation.tools
            self._rebuild()
        else:
            self.ids += [*drawn, *self._renderer.follow(drawn, calls, observation.messages, self._tools)]

    def draw(self, drawn: Sequence[int], calls: Sequence[ToolCall]) -> None:
        """Keeps the tokens of the action that was taken on `ids`, until `see` is told what came of it."""
        self._drawn = (tuple(drawn), tuple(calls))

    def shorten(self, most: int) -> int:
        """Drops the oldest tool results until at most `most` tokens are left, if that can be; how many were dropped.

        This opens a new context. The newest results stay: without them the agent would do the same again.
        """
        dropped, size = 0, len(self.ids)
        for place, turn in enumerate(self._turns[:-1]):
            for index, message in enumerate(turn.answers):
                if size <= most:
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
        return len(self._renderer.follow(turn.drawn, turn.calls, turn.answers, self._tools))

    def _rebuild(self) -> None:
        self.ids = self._renderer.start(self._first, self._tools, self._system)
        for turn in self._turns:
            self.ids += [*turn.drawn, *self._renderer.follow(turn.drawn, turn.calls, turn.answers, self._tools)]
