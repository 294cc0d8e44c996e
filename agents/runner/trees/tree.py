"""One tree: the branches that wait to be played, the use of its budget, and the controller's decisions in it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Protocol

from gymcp.agents.runner.trees.ask_controller import ask_choice
from gymcp.agents.runner.trees.controller import (
    Branch,
    Controller,
    LooksBack,
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
from gymcp.types import GiveUp, SideAnswer, Trajectory, Usage

STOPPED = "stopped by the controller: "
"""Begin of the reason of an episode that a controller ended."""


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

    async def at_end(self, episode: Episode, before: EpisodeState) -> Steered:
        """Do what is decided on the step that ended the episode; `before` is the state before it."""
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
    _places: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Branches that have begun after a step of an episode."""

    def steer(self, fork: Fork | None = None) -> Steering:
        """The controller's decisions in a branch; without one, in the first episode."""
        return Steering(self, fork)

    def add(self, snapshot: Snapshot, forks: list[Fork]) -> None:
        """Let branches of a point wait to be played."""
        self._snapshots.append(snapshot)
        self.waiting.extend(forks)
        self.spent = replace(self.spent, episodes=self.spent.episodes + len(forks))

    def name_places(self, branch: str, step: int, count: int) -> list[str]:
        """The places of further branches after this step of the episode `branch`."""
        taken = self._places[branch, step]
        self._places[branch, step] += count
        places = [f"{step}.{number}" for number in range(taken + 1, taken + count + 1)]
        return [f"{branch}/{place}" if branch else place for place in places]

    def list_points(self, branch: str) -> tuple[int, ...]:
        """Numbers of steps after which episodes have branched off on the path of the episode `branch`, in order."""
        places = branch.split("/") if branch else []
        forks = [int(place.partition(".")[0]) for place in places]
        owners = ["/".join(places[:depth]) for depth in range(len(places) + 1)]
        # an episode's own points lie behind the one that it began at, which is its parent's
        found = {
            step
            for owner, since, until in zip(owners, (-1, *forks), (*forks, None), strict=True)
            for place, step in self._places
            if place == owner and step > since and (until is None or step <= until)
        }
        return tuple(sorted(found))

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
        self._undone: Counter[int] = Counter()  # by the number of the step

    async def after(self, episode: Episode, before: EpisodeState) -> Steered:
        """Do what the controller decides on the last step, which did not end the episode.

        `before`: the state of the episode before the step. Raises EnvInfraError, also if the controller fails.
        """
        played = self._describe(episode)
        choice = ask_choice(self._tree.controller, played, is_end=False)
        if isinstance(choice, Branch):
            await self._branch_off(episode, before, played, choice)
        elif isinstance(choice, Stop):
            return await self._end(episode, STOPPED + choice.reason)
        elif isinstance(choice, Retry | Replace):
            return await self._undo(episode, before, played, choice)
        return Steered()

    async def at_end(self, episode: Episode, before: EpisodeState) -> Steered:
        """Let branches wait that go on from before the episode's last step, or play another one in its place, if its
        controller looks back at it.

        `before`: the state of the episode before the step. Raises EnvInfraError if the controller fails, which no
        longer changes the record.
        """
        ended = Steered(has_ended=True)
        if not isinstance(self._tree.controller, LooksBack) or len(episode.state.steps) == len(before.steps):
            return ended
        played = self._describe(episode)
        choice = ask_choice(self._tree.controller, played, is_end=True)
        if isinstance(choice, Branch) and choice.before:
            await self._branch_off(episode, before, played, choice)
        elif isinstance(choice, Replace):
            return await self._undo(episode, before, played, choice)
        return ended

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
            first=steps[0],
            shared=self._shared,
            points=tree.list_points(self._branch),
            tries=1 + self._undone[len(steps)],
            budget=tree.budget,
            spent=add_usage(tree.spent, usage),
            scores=tuple(tree.scores),
        )

    async def _branch_off(self, episode: Episode, before: EpisodeState, played: Played, choice: Branch) -> None:
        """Let new episodes wait that go on from here, or from before the step, as far as the budget allows."""
        tree, budget, spent = self._tree, self._tree.budget, played.spent
        count = min(choice.ways - 1, budget.episodes - spent.episodes)
        is_spent = any(
            limit is not None and used >= limit
            for used, limit in ((spent.tokens, budget.tokens), (spent.calls, budget.calls))
        )
        if count < 1 or is_spent:
            return
        if choice.before:
            snapshot = make_recorded_point(episode.id, episode.world, before, episode.states)
        else:
            snapshot = await _take_snapshot(episode, count)
        branches = tree.name_places(self._branch, len(snapshot.state.steps), count)
        forks = [Fork(snapshot=snapshot, branch=each, seed=derive_seed("branch", tree.seed, each)) for each in branches]
        tree.add(snapshot, forks)

    async def _undo(self, episode: Episode, before: EpisodeState, played: Played, choice: Retry | Replace) -> Steered:
        """Bring the world back to before the step, and play the other step if the controller has given one."""
        tree = self._tree
        if tree.spent.undone >= tree.budget.undone:
            if episode.trajectory is not None:
                return Steered(has_ended=True)
            return await self._end(episode, f"{tree.budget.undone} steps of the tree undone by the controller")
        tree.spent = replace(tree.spent, undone=tree.spent.undone + 1)
        self._undone[played.number] += 1
        await episode.restore(make_recorded_point(episode.id, episode.world, before, episode.states))
        if isinstance(choice, Replace):
            if choice.keep_answer:
                undone = SideAnswer(context=0, action=played.step.action, sampled=played.step.sampled, replaced=True)
                episode.add_side_answers((undone,))
            transition = await episode.step(choice.decision)
            if transition.terminated or transition.truncated:
                return Steered(has_ended=True)
            if choice.stop:
                return await self._end(episode, STOPPED + choice.stop)
        name = f"{self._branch}~{played.number}.{tree.spent.undone}"
        return Steered(agent_seed=derive_seed("branch", tree.seed, name))

    async def _end(self, episode: Episode, reason: str) -> Steered:
        await episode.give_up(GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=reason))
        return Steered(has_ended=True)


async def _take_snapshot(episode: Episode, count: int) -> Snapshot:
    """The point at which the episode is, for so many branches; if its servers cannot be copied, its record alone."""
    try:
        return await episode.snapshot(opens=count)
    except EnvInfraError:  # the episode itself may go on; its branches are replayed, or fail with their own reason
        return make_recorded_point(episode.id, episode.world, episode.state, episode.states)
