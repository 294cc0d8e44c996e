"""Cost of an episode in tokens, money and seconds, by tool and by model."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gymcp.envs.episodes.network_failures import lacks_network
from gymcp.evaluators.names import WITHOUT_NETWORK
from gymcp.types import Decision, ModelUsage, Step

UNKNOWN_TOOL = "(no such tool)"
"""Name under which calls of tools that were not on offer are counted."""


class UsageMeter:
    """Tokens and money that one party of an episode has used, by model, and the notes of its decisions."""

    def __init__(self) -> None:
        self.models: dict[str, dict[str, float]] = {}
        """Model name -> ``requests``, ``prompt_tokens``, ``completion_tokens``, ``cost``."""
        self.notes: list[str] = []
        self.undone: list[Step] = []
        """Steps that were taken back: in no record, and their calls were made all the same."""
        self.replay_cost = 0.0
        """Cost of calls that were run again."""

    def add(self, decision: Decision) -> None:
        """Counts one decision."""
        if decision.reason:
            self.notes.append(decision.reason)
        self.add_usages((decision.spent, *(answer.spent for answer in decision.side_answers)))

    def add_usages(self, usages: Iterable[ModelUsage | None]) -> None:
        """Counts the known ones of these answers."""
        for spent in usages:
            if spent is None:
                continue
            entry = self.models.setdefault(
                spent.model, {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0}
            )
            entry["requests"] += 1
            entry["prompt_tokens"] += spent.prompt_tokens
            entry["completion_tokens"] += spent.completion_tokens
            entry["cost"] += spent.cost

    def add_replay(self, paid: Iterable[float]) -> None:
        """Counts calls that were run again to bring a world to a point, by their cost."""
        self.replay_cost += math.fsum(paid)

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


class EpisodeClock:
    """Seconds of an episode that no step records. It runs from the end of the reset and is never set back."""

    def __init__(self, reset_s: float) -> None:
        self.reset_s = reset_s
        self.observing_s = 0.0
        """Seconds for reading the state that the calls left, which takes long if they left much."""
        self.aborted_s = 0.0
        """Seconds of calls that have no result because the server or the episode ended during them."""
        self._started = time.perf_counter()

    @property
    def wall_s(self) -> float:
        """Seconds since the reset began."""
        return self.reset_s + time.perf_counter() - self._started

    @contextlib.contextmanager
    def time_observing(self) -> Iterator[None]:
        """Adds the duration of the block to `observing_s`, unless it raises."""
        started = time.perf_counter()
        yield
        self.observing_s += time.perf_counter() - started

    @contextlib.contextmanager
    def time_aborted(self) -> Iterator[None]:
        """Adds the duration of the block to `aborted_s` if it raises."""
        started = time.perf_counter()
        try:
            yield
        except BaseException:  # counted and passed on
            self.aborted_s += time.perf_counter() - started
            raise


def usage_by_tool(steps: Sequence[Step]) -> dict[str, Mapping[str, float]]:
    """Calls, errors, seconds and cost of each tool; all names that were not on offer count as one tool.

    A tool whose calls failed for want of network also has their number, as `WITHOUT_NETWORK`.
    """
    usage: dict[str, dict[str, float]] = {}
    for step in steps:
        offered = {tool.name for tool in step.observation.tools}
        for call, result in zip(step.action.tool_calls, step.results, strict=False):
            name = call.name if call.name in offered else UNKNOWN_TOOL
            entry = usage.setdefault(name, {"calls": 0, "errors": 0, "seconds": 0.0, "cost": 0.0})
            entry["calls"] += 1
            entry["errors"] += result.is_error
            entry["seconds"] += result.seconds
            entry["cost"] += result.cost
            if lacks_network(result):
                entry[WITHOUT_NETWORK] = entry.get(WITHOUT_NETWORK, 0) + 1
    return dict(usage)
