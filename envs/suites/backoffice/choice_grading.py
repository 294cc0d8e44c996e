"""A grader of choices with prices: what was done must have been known, and what it cost stands beside the score."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from gymcp.envs.tool_costs import ToolCosts
from gymcp.evaluators.graders.matching import calls_with_results
from gymcp.evaluators.graders.questions import ASK_USER
from gymcp.evaluators.names import NET_OF_PRICE
from gymcp.protocols import Grader, StateReader
from gymcp.types import Score, Task, Trajectory

COMPONENTS = ("price", "cheapest", "looks")
"""Components that `with_prices` adds."""


def with_prices(grader: Grader, costs: ToolCosts) -> Grader:
    """Grader: the grader's score, or 0 if a value that had to be looked up was used before any answer showed it.

    Components: ``price``, the money for all calls; ``net_of_price``, the score less the price, at least 0;
    ``cheapest``, 1 if the task was solved and cost no more than its gold; ``looks``, the calls that neither ask nor
    change anything.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        score = grader(task, trajectory, states)
        guess = _find_guess(task, trajectory)
        value = 0.0 if guess else score.value
        made = [(call.name, result.cost) for _, call, result in calls_with_results(trajectory)]
        price = math.fsum(cost for _, cost in made)
        gold = math.fsum(costs.of_tool(call.name).money for turn in task.gold for call in turn.calls)
        components = {
            **score.components,
            NET_OF_PRICE: max(0.0, value - price),
            "price": price,
            "cheapest": float(value == 1.0 and price <= gold + 1e-9),
            "looks": float(sum(name != ASK_USER and not costs.of_tool(name).risk for name, _ in made)),
        }
        return replace(score, value=value, components=components, reason="; ".join(filter(None, (score.reason, guess))))

    return grade


def _find_guess(task: Task, trajectory: Trajectory) -> str:
    """The first call that used a value before an answer of an earlier step showed it; empty if there is none."""
    wanted = task.target.get("to_find") if isinstance(task.target, Mapping) else None
    if wanted is None:
        return ""
    pattern = re.compile(rf"(?<!\w){re.escape(wanted['value'])}(?!\w)")
    shown_in: int | None = None
    numbers = {id(step): number for number, step in enumerate(trajectory.steps)}
    for step, call, result in calls_with_results(trajectory):
        number = numbers[id(step)]
        if call.name in wanted["needed_by"] and (shown_in is None or shown_in >= number):
            return f"guessed: {call.name} came before anything had shown {wanted['value']}"
        if shown_in is None and pattern.search(result.content):
            shown_in = number
    return ""
