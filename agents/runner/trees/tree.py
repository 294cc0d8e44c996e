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
    Undoes,
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
NOT_REPLACED = "not_replaced"
"""Key of a record's provenance: numbers of the steps, from 0, that were to be replaced and stayed."""
LIVE_COPIES = 24
"""Copies of its servers that a tree, or points of a search, keep alive; episodes from others begin with a replay."""


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
    lacks_replacement: bool = False
    """True: the step was to be replaced, and stays because it cannot be undone."""


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
    _last_point: Snapshot | None = None
    """The point before the step that is played next."""
    _places: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Branches that have begun after a step of an episode."""

    def steer(self, fork: Fork | None = None) -> Steering:
        """The controller's decisions in a branch; without one, in the first episode."""
        return Steering(self, fork)

    @property
    def room_for_copies(self) -> int:
        """Number of further servers that may be copied for branches."""
        return max(0, LIVE_COPIES - sum(fork.snapshot.world is not None for fork in self.waiting))

    def keep_last_point(self, point: Snapshot | None) -> None:
        """Keep the point before the next step, in place of that before an earlier one."""
        if self._last_point is not None:
            self._last_point.discard()
        self._last_point = point

    def find_last_point(self, state: EpisodeState) -> Snapshot | None:
        """The point that was kept, if the episode had this state there."""
        is_there = self._last_point is not None and self._last_point.state is state
        return self._last_point if is_there else None

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
        self.keep_last_point(None)
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
        steered = Steered()
        if isinstance(choice, Retry | Replace):
            steered = await self._undo(episode, before, played, choice)
        return await self._keep_point(episode, steered)

    async def at_end(self, episode: Episode, before: EpisodeState) -> Steered:
        """Let branches wait that go on from before the episode's last step, or play another one in its place, if its
        controller looks back at it.

        `before`: the state of the episode before the step. Raises EnvInfraError if the controller fails, which no
        longer changes the record; nor does a server that is lost in the other step.
        """
        ended = Steered(has_ended=True)
        if not isinstance(self._tree.controller, LooksBack) or len(episode.state.steps) == len(before.steps):
            return ended
        played = self._describe(episode)
        choice = ask_choice(self._tree.controller, played, is_end=True)
        if isinstance(choice, Branch) and choice.before:
            await self._branch_off(episode, before, played, choice)
        elif isinstance(choice, Replace):
            return await self._keep_point(episode, await self._undo(episode, before, played, choice))
        return ended

    async def _keep_point(self, episode: Episode, steered: Steered) -> Steered:
        """Copy the servers before the next step if the controller may undo it; the effect of its decision as given."""
        controller = self._tree.controller
        if isinstance(controller, Undoes) and controller.undoes and not steered.has_ended:
            self._tree.keep_last_point(await _take_snapshot(episode, 1))
        return steered

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
        if count < 1 or budget.is_spent(spent):
            return
        copies = 0 if choice.before else min(count, tree.room_for_copies)
        if copies:
            snapshot = await _take_snapshot(episode, copies)
        else:
            state = before if choice.before else episode.state
            snapshot = make_recorded_point(episode.id, episode.world, state, episode.states)
        points = [snapshot] * copies + [replace(snapshot, world=None)] * (count - copies)
        branches = tree.name_places(self._branch, len(snapshot.state.steps), count)
        forks = [
            Fork(snapshot=point, branch=each, seed=derive_seed("branch", tree.seed, each))
            for point, each in zip(points, branches, strict=True)
        ]
        tree.add(snapshot, forks)

    async def _undo(self, episode: Episode, before: EpisodeState, played: Played, choice: Retry | Replace) -> Steered:
        """Bring the world back to before the step, and play the other step if the controller has given one.

        A step that cannot be undone stays, and the record says so.
        """
        tree, graded = self._tree, episode.trajectory
        if tree.spent.undone >= tree.budget.undone:
            if episode.trajectory is not None:
                return Steered(has_ended=True)
            return await self._end(episode, f"{tree.budget.undone} steps of the tree undone by the controller")
        point = tree.find_last_point(before)
        try:
            await episode.restore(point or make_recorded_point(episode.id, episode.world, before, episode.states))
        except EnvInfraError as error:
            episode.add_note(f"step {played.number} was not undone, because it cannot be: {error}")
            return await self._let_stand(episode, choice)
        tree.spent = replace(tree.spent, undone=tree.spent.undone + 1)
        self._undone[played.number] += 1
        if isinstance(choice, Replace):
            try:
                has_ended = await self._play_other(episode, played, choice)
            except EnvInfraError as error:
                if graded is None:
                    raise
                episode.take_back(graded, f"step {played.number} stays, because the other one lost a server: {error}")
                return Steered(has_ended=True, lacks_replacement=True)
            if has_ended:
                return Steered(has_ended=True)
        name = f"{self._branch}~{played.number}.{tree.spent.undone}"
        return Steered(agent_seed=derive_seed("branch", tree.seed, name))

    async def _let_stand(self, episode: Episode, choice: Retry | Replace) -> Steered:
        """Go on after a step that cannot be undone, or end the episode if the choice says so."""
        has_ended, is_replaced = episode.trajectory is not None, isinstance(choice, Replace)
        if isinstance(choice, Replace) and choice.stop and not has_ended:
            has_ended = (await self._end(episode, STOPPED + choice.stop)).has_ended
        return Steered(has_ended=has_ended, lacks_replacement=is_replaced)

    async def _play_other(self, episode: Episode, played: Played, choice: Replace) -> bool:
        """Play the step that the controller has given; return True if the episode is over. Raises EnvInfraError."""
        if choice.keep_answer:
            undone = SideAnswer(context=0, action=played.step.action, sampled=played.step.sampled, replaced=True)
            episode.add_side_answers((undone,))
        transition = await episode.step(choice.decision)
        if not (transition.terminated or transition.truncated) and choice.stop:
            await self._end(episode, STOPPED + choice.stop)
        return transition.terminated or transition.truncated or bool(choice.stop)

    async def _end(self, episode: Episode, reason: str) -> Steered:
        await episode.give_up(GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=reason))
        return Steered(has_ended=True)


async def _take_snapshot(episode: Episode, count: int) -> Snapshot:
    """The point at which the episode is, for so many branches; if its servers cannot be copied, its record alone."""
    try:
        return await episode.snapshot(opens=count)
    except EnvInfraError:  # the episode itself may go on; its branches are replayed, or fail with their own reason
        return make_recorded_point(episode.id, episode.world, episode.state, episode.states)
