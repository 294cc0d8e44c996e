"""The budget of an episode whose program may ask the model several times at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gymcp.agents.strategies.budgets import Budget, BudgetTracker
from gymcp.errors import GymcpError
from gymcp.types import ModelUsage


class BudgetExhausted(GymcpError):
    """A limit has been reached; the message is the limit, in words."""


class SharedBudget:
    """Holds for requests that run at the same time: what a running one may use is reserved for it.

    A request waits for the others if they have reserved all tokens that are left, or if money is limited: an answer's
    cost is known when it is there.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._spent = BudgetTracker(budget)
        self._running = 0
        self._reserved_tokens = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def reserve(self, tokens: int) -> AsyncIterator[int]:
        """Reserve an answer of up to `tokens` tokens until the context is left; gives the number that it may have.

        Raises BudgetExhausted if a limit has been reached, or is reached by the answers that are under way.
        """
        async with self._changed:
            while self._must_wait():
                await self._changed.wait()
            if reason := self._spent.exhausted or self._answers_exhausted():
                raise BudgetExhausted(reason)
            granted = self._spent.tokens_left(tokens + self._reserved_tokens) - self._reserved_tokens
            self._running += 1
            self._reserved_tokens += granted
        try:
            yield granted
        finally:
            async with self._changed:
                self._running -= 1
                self._reserved_tokens -= granted
                self._changed.notify_all()

    def spend(self, spent: ModelUsage) -> None:
        """Add an answer; to be called before its reservation ends."""
        self._spent.spend(spent, 0.0)

    def _must_wait(self) -> bool:
        if not self._running or self._spent.exhausted:
            return False
        reserved = self._reserved_tokens
        return self._budget.cost is not None or self._spent.tokens_left(reserved + 1) <= reserved

    def _answers_exhausted(self) -> str | None:
        left = self._spent.answers_left
        return None if left is None or left > self._running else f"{self._budget.turns} answers"
