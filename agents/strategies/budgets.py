"""Budgets of an episode and of a run.

An episode ends when its budget is exhausted and is graded on the state it has reached. When the money of a run is
spent, the episodes under way are cancelled and run again on resume: how far they came depends on which others ran
beside them, so they say nothing about the policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from gymcp.errors import ConfigError
from gymcp.types import EpisodeLimits, ModelUsage

MAX_TURNS = 1_000
"""Answers of the model in an episode by default: ten times the steps that an environment allows by default, so that the
environment's own limit ends an episode first, whatever suite it is of."""
MAX_TOKENS = 1_000_000
"""Tokens drawn in an episode by default: `MAX_TURNS` long answers of 1,000 tokens."""
MAX_SECONDS = 3_600.0
"""Seconds of the agent's own time in an episode by default: 36 s for each of the 100 steps that an environment allows
by default, which is slow for an endpoint and enough for a model on CPU cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one episode beside the environment's; None means no limit."""

    turns: int | None = MAX_TURNS
    """Maximum number of answers of the model."""
    tokens: int | None = MAX_TOKENS
    """Maximum number of tokens sampled by the model in all answers together."""
    seconds: float | None = MAX_SECONDS
    """Maximum number of seconds of the agent's own time: its thinking, and its waiting for the model."""
    cost: float | None = None
    """Maximum cost of the model, in the currency of its price."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None and not value > 0:
                raise ConfigError(f"budget of {limit.name}: must be more than 0, not {value}")
            if value is not None and not math.isfinite(value):
                raise ConfigError(f"budget of {limit.name}: must be a finite number, not {value}")


def limit_agent_time(limits: EpisodeLimits, seconds: float | None) -> float:
    """Seconds of the agent's own time in an episode with these limits.

    `seconds`: limit of the run, which can lower that of the environment; None: the run has none of its own.
    """
    if limits.agent_s is None:
        return MAX_SECONDS if seconds is None else seconds
    return limits.agent_s if seconds is None else min(limits.agent_s, seconds)


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
            return f"{budget.seconds:g} s of the agent's time"
        if budget.cost is not None and self._cost >= budget.cost:
            return f"{budget.cost:g} of money for the model"
        return None

    @property
    def answers_left(self) -> int | None:
        """Answers until the limit; None if there is no limit."""
        return None if self._budget.turns is None else max(0, self._budget.turns - self._turns)

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

    def end(self) -> None:
        """Let nothing more be spent: another process that shares the budget has reached its limit."""
        self._cost = min(self._cost or 0.0, self._spent)

    @property
    def spent(self) -> float:
        """Cost so far."""
        return self._spent

    @property
    def is_spent(self) -> bool:
        """True if there is a limit and it has been reached."""
        return self._cost is not None and self._spent >= self._cost

    def has_room_for(self, cost: float) -> bool:
        """True if the limit, if there is one, would not be reached by spending as much more."""
        return self._cost is None or self._spent + cost < self._cost
