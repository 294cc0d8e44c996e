"""The user's side of an episode: the messages the user sees, the tools only the user has, and the user's replies."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from gymcp.envs.episodes.usage import UsageMeter
from gymcp.envs.users import DO_NOT_KNOW
from gymcp.protocols import Answers, Confirms, User, UserView
from gymcp.types import Action, Decision, Message, Step, Task, Tool, ToolCall, ToolResult, UserToolCalls

MAX_TOOL_ROUNDS = 32
"""Most replies in a row in which a user calls tools; after them the user has no tools and must speak."""

RunUserCall = Callable[[ToolCall], Awaitable[ToolResult]]
Pause = Callable[[], AbstractContextManager[None]]
"""Opens a block in which the time of the harness stands still."""


class UserSession:
    """The user of one episode, and the use of models and time for it."""

    def __init__(self, user: User, seed: int, pause: Pause = nullcontext) -> None:
        """`pause`: context in which the user's model is waited for."""
        self._user = user
        self._seed = seed
        self._pause = pause
        self.meter = UsageMeter()
        self.seconds = 0.0
        """Seconds of waiting for the user, the user's tool calls included."""

    async def open(self) -> Message | None:
        """The user's first message, before the agent has spoken; the user has no tools yet. Raises PolicyInfraError."""
        return _to_message(await self._ask_for_action(UserView(seed=self._seed)))

    async def reply(
        self,
        steps: Sequence[Step],
        current: Step,
        tools: tuple[Tool, ...],
        run_call: RunUserCall,
        rounds: list[UserToolCalls],
    ) -> Message | None:
        """The user's answer to the agent's message in the step `current`; None if the user leaves.

        Calls that the user makes before answering are run with `run_call` and appended to `rounds`. The conversation is
        rebuilt from all steps each time, because a user keeps no state. Raises PolicyInfraError, and any error of
        `run_call`.
        """
        messages = list(messages_for_user((*steps, current)))
        count = sum(len(earlier.calls) for step in steps for earlier in step.user_acts)
        while True:
            offered = tools if len(rounds) < MAX_TOOL_ROUNDS else ()
            action = await self._ask_for_action(UserView(messages=tuple(messages), tools=offered, seed=self._seed))
            if action is None or not (action.tool_calls and offered):
                return _to_message(action)
            # a model's own ids may repeat within an episode
            calls = [replace(call, id=f"user_{count + n}") for n, call in enumerate(action.tool_calls, start=1)]
            count += len(calls)
            started = time.perf_counter()
            try:
                results = [await run_call(call) for call in calls]
            finally:
                self.seconds += time.perf_counter() - started
            rounds.append(UserToolCalls(calls=tuple(calls), results=tuple(results)))
            messages += _to_messages(rounds[-1])

    async def confirm(self, question: str) -> bool:
        """The user's decision on the question; False if this user cannot be asked."""
        with self._pause():
            return await self._user.confirm(question) if isinstance(self._user, Confirms) else False

    async def answer_question(self, question: str) -> str:
        """The user's answer to a question that a tool asks in the middle of the agent's turn."""
        started = time.perf_counter()
        try:
            with self._pause():
                return await self._user.answer_question(question) if isinstance(self._user, Answers) else DO_NOT_KNOW
        finally:
            self.seconds += time.perf_counter() - started

    async def _ask_for_action(self, view: UserView) -> Action | None:
        started = time.perf_counter()
        try:
            with self._pause():
                decision = await self._user.reply(view)
        finally:
            self.seconds += time.perf_counter() - started
        if isinstance(decision, Decision):
            self.meter.add(decision)
            return decision.action if decision.action != Action() else None
        return decision


def system_messages(task: Task) -> tuple[Message, ...]:
    """Messages for the agent before the user's first one: the task's handbook, if it has one."""
    return () if task.handbook is None else (Message(role="system", content=task.handbook),)


def messages_for_user(steps: Iterable[Step]) -> Iterator[Message]:
    """The conversation as the user sees it; the agent's message in the last step is not answered yet."""
    for step in steps:
        yield from (message for message in step.observation.messages if message.role == "user")
        if not step.action.tool_calls:
            yield Message(role="assistant", content=step.action.text)
        for tool_calls in step.user_acts:
            yield from _to_messages(tool_calls)


def _to_message(action: Action | None) -> Message | None:
    return None if action is None else Message(role="user", content=action.text)


def _to_messages(tool_calls: UserToolCalls) -> Iterator[Message]:
    yield Message(role="user", content="", tool_calls=tool_calls.calls)
    for result in tool_calls.results:
        yield Message(role="tool", content=result.content, tool_call_id=result.call_id, is_error=result.is_error)
