"""Answers of the model to a program, told apart: those that led to a step of the episode, and side answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gymcp.types import Action, Decision, Json, SideAnswer, ToolCall

MAX_ASKED_CHARS = 500
"""Characters of a request's last message that are recorded with a side answer."""


@dataclass(slots=True, eq=False)
class Answer:
    """An answer that belongs to no step yet, or of whose calls the program may still make some."""

    decision: Decision
    asked: str
    """Beginning of the last message of the request."""
    calls: list[ToolCall]
    """Calls that the program has not made."""
    is_recorded: bool = False
    """True if a step has the answer's tokens."""

    def to_side_answer(self) -> SideAnswer:
        """The record of an answer that is no step."""
        decision = self.decision
        assert decision.context is not None
        return SideAnswer(
            context=decision.context,
            asked=self.asked,
            action=decision.action,
            sampled=decision.sampled,
            spent=decision.spent,
        )


@dataclass(slots=True)
class Answers:
    """The answers of one episode that are not settled, oldest first."""

    pending: list[Answer] = field(default_factory=list)
    acting: set[int] = field(default_factory=set)
    """Contexts with a step."""

    def add(self, decision: Decision, asked: str) -> None:
        """Note an answer and the last message that it answers."""
        asked = asked[:MAX_ASKED_CHARS]
        self.pending.append(Answer(decision=decision, asked=asked, calls=list(decision.action.tool_calls)))

    def take_for_call(self, name: str, arguments: Mapping[str, Json]) -> Answer | None:
        """The answer that asked for the call, whose call is then made.

        The program may offer a tool to its model under a longer name, such as ``mcp__gymcp__pay``. If no answer asks
        for the call, the newest answer without a step is its cause: programs may read calls out of texts.
        """
        for answer in reversed(self.pending):
            for call in answer.calls:
                if call.name.endswith(name) and call.arguments == arguments:
                    answer.calls.remove(call)
                    return answer
        return next((answer for answer in reversed(self.pending) if not answer.is_recorded), None)

    def take_for_end(self, text: str) -> Answer | None:
        """The answer that ended the turn with this text: one that says it, else the newest of a context that acts.

        A title that the program asks for after its last step is neither. Without such an answer: the newest without
        calls before the newest with calls.
        """
        new = [answer for answer in reversed(self.pending) if not answer.is_recorded]
        final = [answer for answer in new if not answer.calls]
        says = [answer for answer in final if text and answer.decision.action.text.strip() == text.strip()]
        acts = [answer for answer in final if answer.decision.context in self.acting]
        return next(iter((*says, *acts, *final, *new)), None)

    def decide(self, answer: Answer | None, action: Action, offered: frozenset[str] | None = None) -> Decision:
        """The decision of a step: the action, with the tokens of `answer`, and all other answers that are settled.

        `offered`: tools of the episode; answers with a call of one stay, because the program may still make it. None
        at the end of a turn, which settles all answers.
        """
        if answer is None:
            return Decision(action=action, side_answers=self._settle(offered))
        made, first = answer.decision, not answer.is_recorded
        answer.is_recorded = True
        if made.context is not None:
            self.acting.add(made.context)
        return Decision(
            action=action,
            sampled=made.sampled if first else None,
            reasoning=made.reasoning if first else "",
            request_times=made.request_times if first else None,
            spent=made.spent if first else None,
            context=made.context,
            side_answers=self._settle(offered),
        )

    def take_rest(self) -> tuple[SideAnswer, ...]:
        """All answers that are no step, at the end of the episode."""
        return self._settle(None)

    def _settle(self, offered: frozenset[str] | None) -> tuple[SideAnswer, ...]:
        """Forget the answers whose calls are all made, and those that are no step, which are returned."""
        waits = [answer for answer in self.pending if offered is not None and _may_call(answer, offered)]
        settled = [answer for answer in self.pending if answer not in waits and not answer.is_recorded]
        self.pending = waits
        return tuple(answer.to_side_answer() for answer in settled)


def _may_call(answer: Answer, offered: frozenset[str]) -> bool:
    """True if the program may still make a call of the answer to a tool of the episode."""
    return any(call.name.endswith(tool) for call in answer.calls for tool in offered)
