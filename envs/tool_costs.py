"""Costs of tool calls as an environment declares them, and those of recorded steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from gymcp.errors import ConfigError
from gymcp.evaluators.graders.matching import server_calls
from gymcp.types import Step, ToolResult

COMPONENTS = ("money", "seconds", "calls", "bytes", "risk", "asking")
"""Components of a cost. ``asking`` is the money for questions to the user, and ``money`` that for all other calls."""

CostVector = Mapping[str, float]
"""Component -> amount."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """Cost of one call of a tool, whether it fails or not."""

    money: float = 0.0
    """Price, which is recorded with the result; a call that was refused before it reached a server has none."""
    seconds: float | None = None
    """Seconds that the call stands for; None: those that it took, which differ from run to run."""
    calls: float = 1.0
    """Calls that it counts as; 0: it is free."""
    bytes: float | None = None
    """Bytes that the call stands for; None: those of its answer."""
    risk: float = 0.0
    """Harm that the call may do, from 0 (it only reads) to 1 (it cannot be undone)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCosts:
    """Costs of an environment's tools."""

    default: CallCost = field(default_factory=CallCost)
    """Cost of a tool that is not among `tools`."""
    tools: Mapping[str, CallCost] = field(default_factory=dict)
    """Costs by the name that the servers, or a layer, give the tool."""
    asking: frozenset[str] = frozenset()
    """Tools that ask the user, whose price is counted as ``asking``."""

    def of_tool(self, name: str) -> CallCost:
        """Cost of a call of that tool."""
        return self.tools.get(name, self.default)

    def list_components(self) -> tuple[str, ...]:
        """The components that a call of some tool can have, in the order of `COMPONENTS`."""
        names = {name for each in (self.default, *self.tools.values()) for name in _nonzero(each) if name != "money"}
        paid = [self.default, *(cost for name, cost in self.tools.items() if name not in self.asking)]
        names |= {"money"} if any(cost.money for cost in paid) else set()
        names |= {"asking"} if any(self.of_tool(name).money for name in self.asking) else set()
        return tuple(name for name in COMPONENTS if name in names)

    def measures(self, component: str) -> bool:
        """True if a call of some tool costs what was measured of this component."""
        return any(getattr(cost, component) is None for cost in (self.default, *self.tools.values()))


def rate_risks(risks: Mapping[float, Iterable[str]], *, default: CallCost | None = None) -> ToolCosts:
    """Costs of tools that differ in their risk only: risk -> names of the tools; all others cost `default`."""
    ordinary = default or CallCost()
    tools = {name: replace(ordinary, risk=risk) for risk, names in risks.items() for name in names}
    return ToolCosts(default=ordinary, tools=tools)


def step_costs(steps: Sequence[Step], costs: ToolCosts) -> dict[str, list[float]]:
    """Component -> [T]: cost of the calls of each step, from its record."""
    rows = [add_costs(_cost_of_call(name, result, costs) for name, result in _calls_of(step)) for step in steps]
    return {component: [row[component] for row in rows] for component in COMPONENTS}


def episode_costs(steps: Sequence[Step], costs: ToolCosts) -> CostVector:
    """Cost of all calls of an episode, by the components that are declared."""
    of_steps = step_costs(steps, costs)
    return {component: math.fsum(of_steps[component]) for component in costs.list_components()}


def add_costs(vectors: Iterable[CostVector]) -> CostVector:
    """The sum of the vectors."""
    listed = list(vectors)
    return {component: math.fsum(vector[component] for vector in listed) for component in COMPONENTS}


def check_costs(who: str, costs: object) -> None:
    """Raise ConfigError, which begins with `who`, for costs that are of another type, negative, or not finite."""
    if not isinstance(costs, ToolCosts) or not isinstance(costs.tools, Mapping):
        raise ConfigError(f"{who}: its costs must be gymcp.envs.ToolCosts, not {costs!r:.80}")
    for name, cost in (("default", costs.default), *costs.tools.items()):
        if not isinstance(cost, CallCost):
            raise ConfigError(f"{who}: costs of '{name}': must be a gymcp.envs.CallCost, not {cost!r:.80}")
        for each in fields(CallCost):
            value, limit = getattr(cost, each.name), 1.0 if each.name == "risk" else math.inf
            if value is None and each.name in ("seconds", "bytes"):
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not is_number or not 0 <= value <= limit:
                words = "a number from 0 to 1" if each.name == "risk" else "a number from 0 on"
                raise ConfigError(f"{who}: costs of '{name}': {each.name} is {value!r}; it must be {words}")


def _calls_of(step: Step) -> Iterator[tuple[str, ToolResult]]:
    """(name that the server knows, result) of each call that was answered."""
    results = {result.call_id: result for result in step.results}
    return ((call.name, results[call.id]) for call in server_calls(step) if call.id in results)


def _cost_of_call(name: str, result: ToolResult, costs: ToolCosts) -> CostVector:
    cost = costs.of_tool(name)
    return {
        "money": 0.0 if name in costs.asking else result.cost,
        "seconds": result.seconds if cost.seconds is None else cost.seconds,
        "calls": cost.calls,
        "bytes": float(result.content_bytes) if cost.bytes is None else cost.bytes,
        "risk": cost.risk,
        "asking": result.cost if name in costs.asking else 0.0,
    }


def _nonzero(cost: CallCost) -> Iterator[str]:
    return (each.name for each in fields(CallCost) if getattr(cost, each.name) != 0)
