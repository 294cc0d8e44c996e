"""Controllers: they decide which episodes are played, and after each step whether it goes on, branches or is undone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol, runtime_checkable

from gymcp.errors import ConfigError
from gymcp.types import Action, Decision, Step, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBudget:
    """Limits of each tree, that is of an episode with all that branch off it, there or from each other."""

    trials: int = 1
    """Trees of each task that the run asks for."""
    episodes: int = 16
    """Maximum number of episodes of a tree, the first one included."""
    tokens: int | None = None
    """Tokens drawn in a tree after which no further branch begins; None: no limit."""
    calls: int | None = None
    """Tool calls in a tree after which no further branch begins; None: no limit."""
    cost: float | None = None
    """Cost of models and tools in a tree after which no further branch begins; None: no limit."""
    undone: int = 64
    """Steps of a tree that the controller may have undone; at the next one its episode ends as it stands."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if limit.name == "cost":
                if value is not None and not 0 < value < math.inf:
                    raise ConfigError(f"tree budget of cost: must be more than 0, not {value}")
            elif value is not None and value < 1:
                raise ConfigError(f"tree budget of {limit.name}: must be 1 or more, not {value}")

    def is_spent(self, spent: Spent) -> bool:
        """True if the tokens, calls or money of a tree are used up."""
        limits = ((spent.tokens, self.tokens), (spent.calls, self.calls), (spent.cost, self.cost))
        return any(limit is not None and used >= limit for used, limit in limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A decision to begin trees of one task."""

    task: str
    """Id of the task."""
    trees: int
    """Number of trees, each of which begins with an episode of its own; they are its trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The use of a tree's budget so far."""

    episodes: int = 1
    """Episodes that are played, have been played, or wait for it."""
    tokens: int = 0
    calls: int = 0
    cost: float = 0.0
    """Cost of models and tools."""
    undone: int = 0
    """Steps that the controller had undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A step that has just been played and did not end its episode, with what a controller may decide by."""

    task: str
    """Id of the task."""
    trial: int
    branch: str
    """Place of the episode in its tree, as in `BranchRecord`; empty for the first episode."""
    seed: int
    """Seed of the episode. A controller that draws lots derives them from it, so that a tree is played alike again."""
    number: int
    """Number of the step on the path from the root, from 1."""
    step: Step
    first: Step
    """First step of the path."""
    shared: int = 0
    """Number of steps that the episode shares with the one that it branched off."""
    points: tuple[int, ...] = ()
    """Branching points of the path so far: numbers of steps after which episodes have branched off, in order."""
    tries: int = 1
    """Times that this step has been played: one more than it was undone."""
    budget: TreeBudget
    spent: Spent
    """Use of the tree's budget, with that of this episode so far."""
    scores: tuple[float | None, ...]
    """Scores of the tree's episodes that have ended, in order; None for one without a score."""

    @property
    def depth(self) -> int:
        """Number of branchings between the first episode and this one."""
        return self.branch.count("/") + 1 if self.branch else 0

    @property
    def surprise(self) -> float | None:
        """Mean negative log-probability of the step's tokens; None if the model does not give them.

        In the mean over draws, it is the entropy of the distributions that the tokens were drawn from.
        """
        if self.step.sampled is None or not self.step.sampled.logprobs:
            return None
        return -sum(self.step.sampled.logprobs) / len(self.step.sampled.logprobs)


@dataclass(frozen=True, slots=True)
class GoOn:
    """Ask the agent for the next step."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Go on in several ways from here: in this episode, and in new ones that share its steps so far."""

    ways: int
    """Number of ways, this episode's included; at most as many as the budget has episodes for."""
    before: bool = False
    """Let the others go on from before the step, which their agents draw anew. Their worlds are replayed."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Undo the step and ask the agent again, with another seed. If the world cannot be brought back, the step stays."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Undo the step and play another one in its place, on which the controller is not asked again. If the world cannot
    be brought back, the step stays."""

    decision: Decision | Action
    """The other action; a `Decision` with tokens of the model can be trained on."""
    keep_answer: bool = False
    """Record the model's own answer as a side answer of the step, which is trained on with the step's advantage."""
    stop: str = ""
    """Reason to end the episode after the other step; empty: it goes on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the episode here; it is graded as it stands."""

    reason: str


Choice = GoOn | Branch | Retry | Replace | Stop
GO_ON = GoOn()


class Controller(Protocol):
    """Decides what is played. The same budget, seeds and steps must give the same decisions."""

    def plan(self, tasks: Sequence[Task], budget: TreeBudget) -> Sequence[Start]:
        """Numbers of trees of the tasks; a task that is not named is not played."""
        ...

    def after(self, played: Played) -> Choice:
        """Continuation after a step. It is asked after all steps but those that end their episode."""
        ...


@runtime_checkable
class LooksBack(Protocol):
    """A controller that is asked about steps that ended their episode, too."""

    def at_end(self, played: Played) -> Choice:
        """`GoOn`, a `Branch` from before the step, or a `Replace`, with which the episode may go on.

        Otherwise an episode that has ended keeps its record: other choices, and errors, change nothing."""
        ...


@runtime_checkable
class Undoes(Protocol):
    """A controller that says whether it undoes steps."""

    undoes: ClassVar[bool]
    """True: the servers are copied before each step but the first, so that it can be undone without a replay."""


@dataclass(frozen=True, slots=True)
class Independent:
    """The controller without trees: as many episodes of each task as the run has trials, none of which branches."""

    def plan(self, tasks: Sequence[Task], budget: TreeBudget) -> tuple[Start, ...]:
        """The run's trials of every task."""
        return tuple(Start(task=task.id, trees=budget.trials) for task in tasks)

    def after(self, played: Played) -> GoOn:
        """Always the next step. The runner plays such episodes without asking."""
        return GO_ON
