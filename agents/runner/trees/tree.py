"""One tree: the branches that wait to be played, the use of its budget, and the controller's decisions in it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Protocol

from gymcp.agents.runner.trees.controller import (
    Branch,
    Choice,
    Controller,
    Played,
    Replace,
    Retry,
    Spent,
    Stop,
    TreeBudget,
)
from gymcp.envs.episodes.episode import Episode
from gymcp.envs.episodes.episode_state import EpisodeState
from gymcp.envs.episodes.records import subtract_shared
from gymcp.envs.episodes.snapshots import Snapshot, make_recorded_point
from gymcp.errors import EnvInfraError
from gymcp.outcome import Outcome
from gymcp.seeds import derive_seed
from gymcp.types import GiveUp, Trajectory, Usage
from gymcp.user_code import describe_error, describe_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A branch that waits to be played: the point that it goes on from, and its place in the tree."""

    snapshot: Snapshot
    branch: str
    seed: int
    """Seed of the branch's agent; its world and its user go on with those of the first episode."""

    @property
    def shared(self) -> int:
        """Number of steps that it shares with its parent."""
        return len(self.snapshot.state.steps)


@dataclass(frozen=True, slots=True)
class Steered:
    """Effect of a decision on the episode that is played."""

    has_ended: bool = False
    agent_seed: int | None = None
    """Seed of the agent that goes on from the record, after a step was undone; None: the same agent goes on."""


class Steers(Protocol):
    """Decides after each step of an episode of a tree."""

    @property
    def fork(self) -> Fork | None:
        """The point that the episode goes on from; None: it begins with a fresh world."""
        ...

    async def after(self, episode: Episode, before: EpisodeState) -> Steered:
        """Do what is decided on the last step, which did not end the episode; `before` is the state before it."""
        ...


@dataclass(slots=True)
class Tree:
    """The tree of one job while it is played: its episodes one after another, in the order in which they branched."""

    controller: Controller
    budget: TreeBudget
    task: str
    trial: int
    seed: int
    """Seed of the first episode."""
    spent: Spent = field(default_factory=Spent)
    """Use of the budget by episodes that have ended; `episodes` counts those that wait as well."""
    scores: list[float | None] = field(default_factory=list)
    waiting: deque[Fork] = field(default_factory=deque)
    _snapshots: list[Snapshot] = field(default_factory=list)

    def steer(self, fork: Fork | None = None) -> Steering:
        """The controller's decisions in a branch; without one, in the first episode."""
        return Steering(self, fork)

    def add(self, snapshot: Snapshot, forks: list[Fork]) -> None:
        """Let branches of a point wait to be played."""
        self._snapshots.append(snapshot)
        self.waiting.extend(forks)
        self.spent = replace(self.spent, episodes=self.spent.episodes + len(forks))

    def note_end(self, record: Trajectory) -> None:
        """Count an episode that has ended, whose usage is its own."""
        self.scores.append(record.score)
        self.spent = add_usage(self.spent, record.usage)

    def discard(self) -> None:
        """Free what keeps the points of the branches alive."""
        for snapshot in self._snapshots:
            snapshot.discard()


def add_usage(spent: Spent, usage: Usage) -> Spent:
    """The use of a tree's budget together with that of an episode."""
    return replace(
        spent,
        tokens=spent.tokens + usage.completion_tokens,
        calls=spent.calls + usage.tool_calls,
        cost=spent.cost + usage.cost,
    )


class Steering:
    """The decisions of a tree's controller in one of its episodes."""

    def __init__(self, tree: Tree, fork: Fork | None) -> None:
        self.fork = fork
        self._tree = tree
        self._branch = fork.branch if fork is not None else ""
        self._shared = fork.shared if fork is not None else 0
        self._seed = fork.seed if fork is not None else tree.seed

    async def after(self, episode: Episode, before: EpisodeState) -> Steered:
        """Do what the controller decides on the last step, which did not end the episode.

        `before`: the state of the episode before the step. Raises EnvInfraError, also if the controller fails.
        """
        played = self._describe(episode)
        choice = self._ask(played)
        if isinstance(choice, Branch):
            await self._branch_off(episode, played, choice.ways)
        elif isinstance(choice, Stop):
            return await self._end(episode, f"stopped by the controller: {choice.reason}")
        elif isinstance(choice, Retry | Replace):
            return await self._undo(episode, before, played, choice)
        return Steered()

    def _describe(self, episode: Episode) -> Played:
        tree, steps = self._tree, episode.state.steps
        usage = subtract_shared(episode.record(Outcome.CANCELLED).usage, steps, self._shared)
        return Played(
            task=tree.task,
            trial=tree.trial,
            branch=self._branch,
            seed=self._seed,
            number=len(steps),
            step=steps[-1],
            budget=tree.budget,
            spent=add_usage(tree.spent, usage),
            scores=tuple(tree.scores),
        )

    def _ask(self, played: Played) -> Choice:
        controller = self._tree.controller
        who = f"controller {type(controller).__name__}"
        try:
            choice: object = controller.after(played)
        except Exception as error:  # the boundary to a controller of the user
            raise EnvInfraError(f"{who}: raised {describe_error(error)} after step {played.number}") from error
        if not isinstance(choice, Choice):
            raise EnvInfraError(f"{who}: gave {describe_kind(choice)} after step {played.number}, not a choice")
        if isinstance(choice, Branch) and choice.ways < 1:
            raise EnvInfraError(f"{who}: branches {choice.ways} ways after step {played.number}; 1 is to go on")
        return choice

    async def _branch_off(self, episode: Episode, played: Played, ways: int) -> None:
        """Let new episodes wait that go on from here, as far as the budget allows."""
        tree, budget, spent = self._tree, self._tree.budget, played.spent
        count = min(ways - 1, budget.episodes - spent.episodes)
        is_spent = any(
            limit is not None and used >= limit
            for used, limit in ((spent.tokens, budget.tokens), (spent.calls, budget.calls))
        )
        if count < 1 or is_spent:
            return
        try:
            snapshot = await episode.snapshot(opens=count)
        except EnvInfraError:  # the episode itself may go on; its branches are replayed, or fail with their own reason
            snapshot = make_recorded_point(episode.id, episode.world, episode.state, episode.states)
        places = [f"{played.number}.{number}" for number in range(1, count + 1)]
        branches = [f"{self._branch}/{place}" if self._branch else place for place in places]
        forks = [Fork(snapshot=snapshot, branch=each, seed=derive_seed("branch", tree.seed, each)) for each in branches]
        tree.add(snapshot, forks)

    async def _undo(self, episode: Episode, before: EpisodeState, played: Played, choice: Retry | Replace) -> Steered:
        """Bring the world back to before the step, and play the other step if the controller has given one."""
        tree = self._tree
        if tree.spent.undone >= tree.budget.undone:
            return await self._end(episode, f"{tree.budget.undone} steps of the tree undone by the controller")
        tree.spent = replace(tree.spent, undone=tree.spent.undone + 1)
        await episode.restore(make_recorded_point(episode.id, episode.world, before, episode.states))
        if isinstance(choice, Replace):
            transition = await episode.step(choice.decision)
            if transition.terminated or transition.truncated:
                return Steered(has_ended=True)
        name = f"{self._branch}~{played.number}.{tree.spent.undone}"
        return Steered(agent_seed=derive_seed("branch", tree.seed, name))

    async def _end(self, episode: Episode, reason: str) -> Steered:
        await episode.give_up(GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=reason))
        return Steered(has_ended=True)
