"""What may be spent: by one episode, which ends with its budget and is graded as it stands, and by a whole run.

A run whose money is spent cancels what is under way, to be run again: how far an episode came depends on which others
ran beside it, so nothing can be said of its policy.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from gymcp.errors import ConfigError
from gymcp.types import ModelUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """None: no limit beside the environment's."""

    turns: int | None = None
    """Answers of the model."""
    tokens: int | None = None
    """Drawn by the model, all answers together."""
    seconds: float | None = None
    """Of the model's own time."""
    cost: float | None = None
    """Money for the model."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None and not value > 0:
                raise ConfigError(f"budget of {limit.name}: must be more than 0, not {value}")


class Purse:
    """What is left of a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._turns = 0
        self._tokens = 0
        self._seconds = 0.0
        self._cost = 0.0

    def pay(self, spent: ModelUsage, seconds: float) -> None:
        """Takes one answer out of it."""
        self._turns += 1
        self._tokens += spent.completion_tokens
        self._seconds += seconds
        self._cost += spent.cost

    @property
    def empty(self) -> str | None:
        """Which budget is spent, in words."""
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
        """None: no limit."""
        return None if self._budget.seconds is None else max(0.0, self._budget.seconds - self._seconds)

    def tokens_left(self, most: int) -> int:
        """At most `most`."""
        return most if self._budget.tokens is None else min(most, self._budget.tokens - self._tokens)


class RunBudget:
    """Money of a run, episodes under way included."""

    def __init__(self, cost: float | None = None, spent: float = 0.0) -> None:
        self._cost = cost
        self._spent = spent

    def pay(self, cost: float) -> None:
        self._spent += cost

    @property
    def is_spent(self) -> bool:
        return self._cost is not None and self._spent >= self._cost
