"""The user's side of an episode: what they hear, the tools that only they have, and what they answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gymcp.envs.episodes.usage import Bill
from gymcp.envs.users import DO_NOT_KNOW
from gymcp.protocols import Answers, Confirms, User
from gymcp.types import Action, Decision, Message, Step, Talk, Task, Tool, ToolCall, ToolResult, UserAct

MAX_ACTS = 32
"""Answers in a row by which a user calls tools; then they have none, and what they say counts."""

MakeCall = Callable[[ToolCall], Awaitable[ToolResult]]


class Counterpart:
    """The user of one episode. Nobody but them is offered their tools."""

    def __init__(self, user: User, seed: int) -> None:
        self._user = user
        self._seed = seed
        self.bill = Bill()
        self.seconds = 0.0

    async def first_words(self) -> Message | None:
        """What they say before the agent has spoken, without tools. Raises PolicyInfraError."""
        return _spoken(await self._asked(Talk(seed=self._seed)))

    async def answer(
        self, steps: Sequence[Step], said: Step, tools: tuple[Tool, ...], call: MakeCall, acts: list[UserAct]
    ) -> Message | None:
        """What they answer to the words of the step `said`; None: nothing any more. What they do before is in `acts`.

        Raises PolicyInfraError, and what `call` raises.
        """
        messages = list(heard((*steps, said)))
        made = sum(len(act.calls) for step in steps for act in step.user_acts)
        while True:
            offered = tools if len(acts) < MAX_ACTS else ()
            action = await self._asked(Talk(messages=tuple(messages), tools=offered, seed=self._seed))
            if action is None or not (action.tool_calls and offered):
                return _spoken(action)
            # a model's own ids may repeat within an episode
            calls = [replace(each, id=f"user_{made + n}") for n, each in enumerate(action.tool_calls, start=1)]
            made += len(calls)
            asked = time.perf_counter()
            try:
                results = [await call(each) for each in calls]
            finally:
                self.seconds += time.perf_counter() - asked
            acts.append(UserAct(calls=tuple(calls), results=tuple(results)))
            messages += _done(acts[-1])

    async def confirm(self, question: str) -> bool:
        """What the user says to it; no, where they cannot be asked."""
        return await self._user.confirm(question) if isinstance(self._user, Confirms) else False

    async def tell(self, question: str) -> str:
        """What the user says to a question that was put to them by a tool, while they wait."""
        asked = time.perf_counter()
        try:
            return await self._user.tell(question) if isinstance(self._user, Answers) else DO_NOT_KNOW
        finally:
            self.seconds += time.perf_counter() - asked

    async def _asked(self, talk: Talk) -> Action | None:
        asked = time.perf_counter()
        try:
            decided = await self._user.reply(talk)
        finally:
            self.seconds += time.perf_counter() - asked
        if isinstance(decided, Decision):
            self.bill.add(decided)
            return decided.action if decided.action != Action() else None
        return decided


def handbook_of(task: Task) -> tuple[Message, ...]:
    """What the agent reads before the user has spoken."""
    return () if task.handbook is None else (Message(role="system", content=task.handbook),)


def heard(steps: Iterable[Step]) -> Iterator[Message]:
    """What the user knows of these steps, the last of which they have not answered yet."""
    for step in steps:
        yield from (message for message in step.observation.messages if message.role == "user")
        if not step.action.tool_calls:
            yield Message(role="assistant", content=step.action.text)
        for act in step.user_acts:
            yield from _done(act)


def _spoken(action: Action | None) -> Message | None:
    return None if action is None else Message(role="user", content=action.text)


def _done(act: UserAct) -> Iterator[Message]:
    yield Message(role="user", content="", tool_calls=act.calls)
    for result in act.results:
        yield Message(role="tool", content=result.content, tool_call_id=result.call_id, is_error=result.is_error)
