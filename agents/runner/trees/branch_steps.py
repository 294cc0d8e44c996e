"""A controller that branches every episode after the same steps, and its text form for the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymcp.agents.runner.trees.controller import GO_ON, Branch, Choice, Played, Start, TreeBudget
from gymcp.errors import ConfigError
from gymcp.types import Task

_FORM = "such as 'ways=2' or 'ways=3,steps=1+4,depth=2,episodes=8,tokens=4000,calls=50,cost=0.5'"

_OWN = ("ways", "depth")
_LIMITS = ("episodes", "tokens", "calls", "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSteps:
    """A controller that lets an episode go on in `ways` ways after every step, or after the given ones.

    Trees are those of the run's trials. Raises ConfigError for numbers with which nothing would branch, and `plan` for
    such a budget.
    """

    ways: int = 2
    """Number of ways, that of the episode itself included."""
    steps: frozenset[int] | None = None
    """Numbers of the steps after which episodes branch, from 1; None: every step."""
    depth: int = 1
    """Number of branchings on a path: with 1, only the first episode of a tree branches."""

    def __post_init__(self) -> None:
        if self.ways < 2:
            raise ConfigError(f"branches: ways={self.ways} is no branch; give 2 or more")
        if self.depth < 1:
            raise ConfigError(f"branches: with depth={self.depth} nothing branches; give 1 or more")
        if self.steps is not None and (not self.steps or min(self.steps) < 1):
            raise ConfigError("branches: steps are counted from 1; give one or more, or none for every step")

    def plan(self, tasks: Sequence[Task], budget: TreeBudget) -> tuple[Start, ...]:
        """As many trees of every task as the run has trials."""
        _check_episodes(budget)
        return tuple(Start(task=task.id, trees=budget.trials) for task in tasks)

    def after(self, played: Played) -> Choice:
        """A branch after the controller's steps, down to its depth."""
        is_here = self.steps is None or played.number in self.steps
        return Branch(self.ways) if is_here and played.depth < self.depth else GO_ON


def parse_branches(text: str) -> tuple[BranchSteps, TreeBudget]:
    """The controller and the budget of ``ways=2,steps=1+4,...``. Raises ConfigError."""
    numbers: dict[str, Any] = {}
    steps: frozenset[int] | None = None
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in ("steps", *_OWN, *_LIMITS) or name in numbers:
            raise ConfigError(f"--branch '{text}': cannot read '{part}'; give numbers, {_FORM}")
        try:
            found = [float(value)] if name == "cost" else [int(each) for each in value.split("+")]
        except ValueError:
            raise ConfigError(f"--branch '{text}': '{value}' is no number; give numbers, {_FORM}") from None
        if name == "steps":
            steps = frozenset(map(int, found))
        elif len(found) > 1:
            raise ConfigError(f"--branch '{text}': only steps can be several; give numbers, {_FORM}")
        numbers[name] = found[0]
    own = {name: numbers[name] for name in _OWN if name in numbers}
    budget = TreeBudget(**{name: numbers[name] for name in _LIMITS if name in numbers})
    _check_episodes(budget)
    return BranchSteps(steps=steps, **own), budget


def _check_episodes(budget: TreeBudget) -> None:
    """Raise ConfigError if a tree has room for its first episode only."""
    if budget.episodes < 2:
        raise ConfigError(f"branches: with episodes={budget.episodes} nothing branches; give 2 or more")
