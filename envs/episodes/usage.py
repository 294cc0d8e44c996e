"""What an episode has cost, by tool and by model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gymcp.types import Decision, Step

UNKNOWN_TOOL = "(no such tool)"


class Bill:
    """What models took in one episode, and what is to be said of it."""

    def __init__(self) -> None:
        self.models: dict[str, dict[str, float]] = {}
        self.notes: list[str] = []

    def add(self, decision: Decision) -> None:
        """Counts one decision."""
        if decision.reason:
            self.notes.append(decision.reason)
        if (spent := decision.spent) is None:
            return
        entry = self.models.setdefault(
            spent.model, {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0}
        )
        entry["requests"] += 1
        entry["prompt_tokens"] += spent.prompt_tokens
        entry["completion_tokens"] += spent.completion_tokens
        entry["cost"] += spent.cost

    @property
    def prompt_tokens(self) -> int:
        return int(self._sum("prompt_tokens"))

    @property
    def completion_tokens(self) -> int:
        return int(self._sum("completion_tokens"))

    @property
    def cost(self) -> float:
        return self._sum("cost")

    def _sum(self, key: str) -> float:
        return math.fsum(entry[key] for entry in self.models.values())


def by_tool(steps: Sequence[Step]) -> dict[str, Mapping[str, float]]:
    """Calls, errors, seconds and money of each tool; names that were not on offer are one."""
    found: dict[str, dict[str, float]] = {}
    for step in steps:
        offered = {tool.name for tool in step.observation.tools}
        for call, result in zip(step.action.tool_calls, step.results, strict=False):
            name = call.name if call.name in offered else UNKNOWN_TOOL
            entry = found.setdefault(name, {"calls": 0, "errors": 0, "seconds": 0.0, "cost": 0.0})
            entry["calls"] += 1
            entry["errors"] += result.is_error
            entry["seconds"] += result.seconds
            entry["cost"] += result.cost
    return dict(found)
