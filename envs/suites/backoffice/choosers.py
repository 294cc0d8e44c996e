"""Agents that always choose alike: they act at once, look first, ask first, or look and then ask if they must.

``gymcp eval backoffice_choosing --agent gymcp.envs.suites.backoffice.choosers:always_asks`` plays one. None of them
reads the request, so each is right on some kinds of tasks only; the oracle chooses what is best. They know what to
do in the end, and the grader tells whether they could.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gymcp.evaluators.graders.questions import ASK_USER
from gymcp.protocols import Agent
from gymcp.types import Action, Observation, Task, ToolCall

USELESS_LOOK = ToolCall(id="look", name="read_policy", arguments={"topic": "refund_days"})
"""Look of an agent that looks although the books cannot help."""


class Chooser:
    """Makes prepared calls one by one, then says that it is done."""

    def __init__(self, calls: Iterable[ToolCall], text: str) -> None:
        self._actions = self._play(calls, text)

    @staticmethod
    def _play(calls: Iterable[ToolCall], text: str) -> Iterator[Action]:
        for number, call in enumerate(calls, 1):
            yield Action(tool_calls=(ToolCall(id=f"call_{number}", name=call.name, arguments=call.arguments),))
        yield Action(text=text)

    async def act(self, observation: Observation) -> Action:
        return next(self._actions, Action())


def acts_at_once(task: Task, seed: int) -> Agent:
    """Never looks and never asks."""
    return Chooser(_changes(task), task.gold[0].final_text)


def always_looks(task: Task, seed: int) -> Agent:
    """Looks, then acts whether that has helped or not."""
    return Chooser((_look(task), *_changes(task)), task.gold[0].final_text)


def always_asks(task: Task, seed: int) -> Agent:
    """Asks, then acts."""
    return Chooser((_question(task), *_changes(task)), task.gold[0].final_text)


def looks_then_asks(task: Task, seed: int) -> Agent:
    """Looks, and asks if the books cannot help."""
    look = _look(task)
    question = (_question(task),) if look is USELESS_LOOK and _must_ask(task) else ()
    return Chooser((look, *question, *_changes(task)), task.gold[0].final_text)


CHOOSERS = {chooser.__name__: chooser for chooser in (acts_at_once, always_looks, looks_then_asks, always_asks)}


def _changes(task: Task) -> tuple[ToolCall, ...]:
    """The gold calls without those that look or ask."""
    reads = ("get_", "list_")
    return tuple(call for call in task.gold[0].calls if call.name != ASK_USER and not call.name.startswith(reads))


def _look(task: Task) -> ToolCall:
    """The gold's look if there is one."""
    return next((call for call in task.gold[0].calls if call.name.startswith(("get_", "list_"))), USELESS_LOOK)


def _must_ask(task: Task) -> bool:
    return any(call.name == ASK_USER for call in task.gold[0].calls)


def _question(task: Task) -> ToolCall:
    question = f"One question: {task.user.facts[0].words[0]}?"
    return ToolCall(id="ask", name=ASK_USER, arguments={"question": question})
