"""An episode in the order in which it happened: as events for people and judges, as a conversation for models.

Each reader renders the events in its own way: `gymcp.evaluators.report.sections`, `gymcp.evaluators.viewer.index`,
`gymcp.evaluators.judge.prompt`. Exports write the conversation: `gymcp.exchange.conversation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gymcp.types import Message, Step, ToolCall, ToolResult, Trajectory, UserToolCalls


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """A message to the agent that is no tool result: results are events of the step that made the call."""

    message: Message


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """The text of the agent's action."""

    text: str
    has_calls: bool
    """True if the action also calls tools."""

    @property
    def is_only_calls(self) -> bool:
        """True for an action that calls tools without a word."""
        return self.has_calls and not self.text


@dataclass(frozen=True, slots=True)
class CallEvent:
    """A tool call of the agent."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """The answer to a tool call of the agent."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class UserActEvent:
    """Tool calls of the simulated user, with their results."""

    act: UserToolCalls


Event = MessageEvent | AnswerEvent | CallEvent | ResultEvent | UserActEvent


def events(trajectory: Trajectory) -> Iterator[list[Event]]:
    """The events of each step."""
    return map(step_events, trajectory.steps)


def step_events(step: Step) -> list[Event]:
    """The events of one step: messages, the agent's answer, its calls, their results, and calls of the user."""
    return [
        *(MessageEvent(message) for message in step.observation.messages if message.role != "tool"),
        AnswerEvent(step.action.text, bool(step.action.tool_calls)),
        *(CallEvent(call) for call in step.action.tool_calls),
        *(ResultEvent(result) for result in step.results),
        *(UserActEvent(act) for act in step.user_acts),
    ]


def conversation(steps: Iterable[Step]) -> Iterator[tuple[tuple[Message, ...], Message]]:
    """(messages that the agent read before its action, its action as a message) of each step.

    The results of a step's calls are messages of the next step, as the agent read them: possibly cut, or changed by a
    layer. `step_events` has them as the server returned them.
    """
    return ((step.observation.messages, step.action.to_message()) for step in steps)
