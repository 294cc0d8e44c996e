"""Budgets that an episode has if nobody sets one."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gymcp.agents.strategies.budgets import MAX_SECONDS, MAX_TOKENS, MAX_TURNS, Budget
from gymcp.envs import catalog
from gymcp.errors import ConfigError
from gymcp.types import EpisodeLimits


def test_every_budget_but_money_has_a_default() -> None:
    budget = Budget()
    assert (budget.turns, budget.tokens, budget.seconds, budget.cost) == (MAX_TURNS, MAX_TOKENS, MAX_SECONDS, None)


@pytest.mark.parametrize("name", catalog.names())
def test_the_limits_of_an_environment_end_an_episode_before_the_default_budget(name: str) -> None:
    limits = catalog.load_spec(name).limits
    assert max(limits.steps, EpisodeLimits().steps) < MAX_TURNS
    assert limits.agent_s is None


@pytest.mark.parametrize("field", [field.name for field in fields(Budget)])
@pytest.mark.parametrize(("value", "says"), [(0, "more than 0, not 0"), (float("inf"), "a finite number, not inf")])
def test_an_invalid_budget_is_refused(field: str, value: float, says: str) -> None:
    with pytest.raises(ConfigError, match=f"budget of {field}: must be {says}"):
        Budget(**{field: value})  # type: ignore[arg-type]
