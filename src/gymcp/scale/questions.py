"""Questions of a node to the driver of its run. They travel with the node's reports, so a node needs no other line."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from gymcp.aio import find_deadline
from gymcp.scale.records import Answer, Question
from gymcp.types import Sampled, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuestion:
    """Asks for a sample of a model that the driver reaches."""

    settings: Hashable
    """Settings of the episode, by which the driver chooses the policy."""
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    wait_s: float = math.inf
    """Seconds until the asker's own time is over, and with it the episode."""


class AskedPolicy:
    """A policy on a node whose samples are the driver's answers."""

    def __init__(self, ask: Callable[[Any], Coroutine[Any, Any, Any]], settings: Hashable = None) -> None:
        self._ask, self._settings = ask, settings

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        wait_s = find_deadline() - asyncio.get_running_loop().time()
        question = SampleQuestion(
            settings=self._settings, prompt_ids=tuple(prompt_ids), sampling=sampling, wait_s=wait_s
        )
        sampled: Sampled = await self._ask(question)
        return sampled


class QuestionBox:
    """Questions of one node until they are answered. It belongs to the event loop of the node's worker."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        """`on_news`: called when there is something to report to the driver."""
        self._on_news = on_news
        self._numbers = itertools.count(1)
        self._new: dict[int, Question] = {}
        self._withdrawn: list[int] = []
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    @property
    def has_news(self) -> bool:
        """True if there is something that the driver has not been told."""
        return bool(self._new or self._withdrawn)

    async def ask(self, content: Any) -> Any:
        """The driver's answer; a cancelled question is withdrawn. Raises a GymcpError that the driver answers with."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._new[number] = Question(number=number, content=content)
        self._on_news()
        try:
            return await answer
        finally:
            del self._waiting[number]
            if answer.cancelled() and self._new.pop(number, None) is None:
                self._withdrawn.append(number)
                self._on_news()

    def take_new(self) -> tuple[tuple[Question, ...], tuple[int, ...]]:
        """The questions and withdrawals since the last call."""
        questions, withdrawn = tuple(self._new.values()), tuple(self._withdrawn)
        self._new.clear()
        self._withdrawn.clear()
        return questions, withdrawn

    def answer(self, answers: Sequence[Answer]) -> None:
        """Give the answers to the askers that still wait."""
        for answer in answers:
            waiting = self._waiting.get(answer.number)
            if waiting is None or waiting.done():
                continue
            if answer.error is not None:
                waiting.set_exception(answer.error)
            else:
                waiting.set_result(answer.content)
