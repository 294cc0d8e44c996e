"""Budgets of an episode and of a run.

An episode ends when its budget is exhausted and is graded on the state it has reached. When the money of a run is
spent, the episodes under way are cancelled and run again on resume: how far they came depends on which others ran
beside them, so they say nothing about the policy.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from gymcp.errors import ConfigError
from gymcp.types import ModelUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one episode; None means no limit beside the environment's."""

    turns: int | None = None
    """Maximum number of answers of the model."""
    tokens: int | None = None
    """Maximum number of tokens sampled by the model in all answers together."""
    seconds: float | None = None
    """Maximum number of seconds spent waiting for the model."""
    cost: float | None = None
    """Maximum cost of the model, in the currency of its price."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None and not value > 0:
                raise ConfigError(f"budget of {limit.name}: must be more than 0, not {value}")


class BudgetTracker:
    """Sums up what one episode has spent and compares it with the budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._turns = 0
        self._tokens = 0
        self._seconds = 0.0
        self._cost = 0.0

    def spend(self, spent: ModelUsage, seconds: float) -> None:
        """Add one answer of the model."""
        self._turns += 1
        self._tokens += spent.completion_tokens
        self._seconds += seconds
        self._cost += spent.cost

    @property
    def exhausted(self) -> str | None:
        """The first limit that has been reached, in words; None if none has."""
        budget = self._budget
        if budget.turns is not None and self._turns >= budget.turns:
            return f"{budget.turns} answers"
        if budget.tokens is not None and self._tokens >= budget.tokens:
            return f"{budget.tokens} tokens"
        if budget.seconds is not None and self._seconds >= budget.seconds:
            return f"{budget.seconds:g} s of the model's time"
        if budget.cost is not None and self._cost >= budget.cost:
            return f"{budget.cost:g} of money for the model"
        return None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the limit; None if there is no limit."""
        return None if self._budget.seconds is None else max(0.0, self._budget.seconds - self._seconds)

    def tokens_left(self, limit: int) -> int:
        """Tokens until the limit, `limit` at most."""
        return limit if self._budget.tokens is None else min(limit, self._budget.tokens - self._tokens)


class RunBudget:
    """The money of a run; what the episodes under way have spent counts at once."""

    def __init__(self, cost: float | None = None, spent: float = 0.0) -> None:
        self._cost = cost
        self._spent = spent

    def spend(self, cost: float) -> None:
        """Add the cost of one step."""
        self._spent += cost

    @property
    def is_spent(self) -> bool:
        """True if there is a limit and it has been reached."""
        return self._cost is not None and self._spent >= self._cost
