"""A search as one job: its episodes one after another, and the one that it chooses as the job's episode."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.search.judging import JudgeEpisode
from gymcp.agents.runner.search.moves import End, Leaf, Move, find_end
from gymcp.agents.runner.search.reroot import Searched, reroot
from gymcp.agents.runner.search.searches import Search
from gymcp.agents.runner.trees.controller import Spent, TreeBudget
from gymcp.agents.runner.trees.play import PlayEpisode, cut_short
from gymcp.agents.runner.trees.tree import LIVE_COPIES, Fork, Steered, add_usage
from gymcp.envs.episodes.episode import Episode
from gymcp.envs.episodes.episode_state import EpisodeState
from gymcp.envs.episodes.snapshots import Snapshot, make_recorded_point
from gymcp.errors import EnvInfraError
from gymcp.outcome import Outcome
from gymcp.seeds import derive_seed
from gymcp.store.trees.stopped_leaves import SEARCH_KEY
from gymcp.types import GiveUp, Json, Trajectory, Usage


async def play_search(
    job: Job,
    search: Search,
    budget: TreeBudget,
    play: PlayEpisode,
    *,
    must_stop: Callable[[], bool],
    judge: JudgeEpisode | None = None,
) -> Rollout:
    """Play the search's episodes until it chooses one or its budget is spent; the others become branches of that one.

    Failures become outcomes, as in `rollout`: an episode that is lost is not chosen unless all are, and the search goes
    on. Only if the first is lost, the job is tried again, but for the last attempt. A search is recorded as a whole:
    once `must_stop` returns True, or an episode is cancelled, the record is that of the first episode, ``cancelled``,
    with the cost of all. `judge` is asked about each episode that was played to its end, or is paused.
    """
    tree = _SearchTree(job=job, search=search, judge=judge)
    moves = search.moves()
    try:
        move = next(moves)
        while True:
            if tree.episodes and must_stop():
                return cut_short(tree.episodes[0].rollout, tree.spent.cost)
            leaf = await tree.play(move, play)
            rollout = tree.episodes[-1].rollout
            if rollout.trajectory.outcome is Outcome.CANCELLED:
                return cut_short(tree.episodes[0].rollout, tree.spent.cost)
            if not leaf.number and leaf.end is End.LOST and not job.attempts.is_last:
                return rollout
            move = moves.send(leaf)
            if tree.is_spent(budget):
                return tree.finish(search.find_best_so_far(tree.leaves))
    except StopIteration as ended:
        return tree.finish(ended.value)
    finally:
        moves.close()
        tree.discard()


@dataclass(slots=True)
class _SearchTree:
    """The episodes of one search, and the points that others can go on from."""

    job: Job
    search: Search
    judge: JudgeEpisode | None
    episodes: list[Searched] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    spent: Spent = field(default_factory=lambda: Spent(episodes=0))
    _points: dict[tuple[int, int], Snapshot] = field(default_factory=dict)
    """(number of the episode, number of its steps) -> the point after them."""

    def is_spent(self, budget: TreeBudget) -> bool:
        """True if no further episode may begin."""
        return budget.is_spent(self.spent) or self.spent.episodes >= budget.episodes

    async def play(self, move: Move, play: PlayEpisode) -> Leaf:
        """Play the move's episode; the leaf holds no verdict unless the search may see it."""
        number, start = len(self.episodes), move.start
        seed = derive_seed("search", self.job.seed, number) if number else self.job.seed
        fork = None if start is None else Fork(snapshot=self._find(start, move.at), branch="", seed=seed)
        steering = _SearchSteering(self, move, number, fork)
        rollout = await play(self._make_job(seed), steering)
        record = rollout.trajectory
        end = find_end(record, steering.stopped)
        self.spent = replace(add_usage(self.spent, record.usage), episodes=number + 1)
        parent = None if start is None else start.number
        shown = record if self.search.sees_verdicts else hide_verdict(record)
        started = time.perf_counter()
        judged = await self._ask_judge(end, shown)
        judged_s = time.perf_counter() - started
        usage = record.usage
        if self.judge is not None:
            usage = replace(usage, wall_s=usage.wall_s + judged_s, grading_s=usage.grading_s + judged_s)
        note = self._note(number, end, usage)
        if self.judge is not None:
            note |= {"judged": judged, "judged_s": judged_s}
        provenance = {**record.provenance, SEARCH_KEY: note}
        noted = replace(rollout, trajectory=replace(record, usage=usage, provenance=provenance))
        self.episodes.append(Searched(rollout=noted, parent=parent, shared=move.at))
        leaf = Leaf(number=number, move=move, end=end, record=shown, judged=judged)
        self.leaves.append(leaf)
        return leaf

    def _make_job(self, seed: int) -> Job:
        """The job of an episode: in the world of the first one if the search compares what follows from its steps.

        Whole tries are independent of each other, as the trials of a run are, so each has a world of its own.
        """
        return replace(self.job, agent_seed=seed) if self.search.forks else replace(self.job, seed=seed)

    async def _ask_judge(self, end: End, record: Trajectory) -> float | None:
        """The judge's score; None without a judge, and for an episode that is worth nothing as it has ended."""
        if self.judge is None or end not in (End.FINISHED, End.PAUSED):
            return None
        return await self.judge(self.job.task, record)

    def _note(self, number: int, end: End, usage: Usage) -> dict[str, Json]:
        """The search in each record, to which the score of a judge or a head, and its seconds, are added."""
        return {
            "name": self.search.name,
            "value": self.search.value,
            "episode": number,
            "end": str(end),
            "tool_calls": usage.tool_calls,
            "completion_tokens": usage.completion_tokens,
            "cost": usage.cost,
            "wall_s": usage.wall_s,
        }

    def _find(self, start: Leaf, at: int) -> Snapshot:
        """The point after the first steps of the episode's path, which an earlier one may have played."""
        while at <= start.move.at and start.move.start is not None:
            start = start.move.start
        return self._points[start.number, at]

    def keep(self, number: int, at: int, point: Snapshot) -> None:
        """Remember a point; of too many, the oldest lets go of its world."""
        self._points[number, at] = point
        live = [place for place, each in self._points.items() if each.world is not None]
        for place in live[:-LIVE_COPIES]:
            self._points[place].discard()
            self._points[place] = replace(self._points[place], world=None)

    def finish(self, chosen: Leaf) -> Rollout:
        """The record of the whole search."""
        return reroot(self.episodes, chosen.number)

    def discard(self) -> None:
        """Free what keeps the points alive."""
        for point in self._points.values():
            point.discard()


def hide_verdict(record: Trajectory) -> Trajectory:
    """The record without anything that its grader has said."""
    steps = tuple(replace(step, reward=0.0) if step.reward else step for step in record.steps)
    return replace(record, score=None, components={}, reason="", provenance={}, steps=steps)


class _SearchSteering:
    """Keeps points of an episode of a search, and stops it when the move says so."""

    def __init__(self, tree: _SearchTree, move: Move, number: int, fork: Fork | None) -> None:
        self.fork = fork
        self.stopped: End | None = None
        """The way in which the search has stopped the episode; None if it has not."""
        self._tree = tree
        self._move = move
        self._number = number

    async def after(self, episode: Episode, before: EpisodeState) -> Steered:
        """Stop the episode after a call that failed, or after the steps of the move; keep the point if it is needed."""
        move, steps = self._move, episode.state.steps
        if move.until_failure and any(result.is_error for result in steps[-1].results):
            return await self._stop(episode, End.FAILED)
        is_last = move.steps is not None and len(steps) - move.at >= move.steps
        if move.keeps or is_last:
            self._tree.keep(self._number, len(steps), await _capture(episode))
        return await self._stop(episode, End.PAUSED) if is_last else Steered()

    async def at_end(self, episode: Episode, before: EpisodeState) -> Steered:
        """Leave the episode as it is: what to play next is decided from the record."""
        return Steered(has_ended=True)

    async def _stop(self, episode: Episode, end: End) -> Steered:
        self.stopped = end
        why = {End.FAILED: "a call failed", End.PAUSED: "to go on from here, or not"}[end]
        await episode.give_up(GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=f"stopped by the search: {why}"))
        return Steered(has_ended=True)


async def _capture(episode: Episode) -> Snapshot:
    """The point after the episode's last step."""
    try:
        return await episode.snapshot()
    except EnvInfraError:  # the episode itself may go on; those that go on from here replay its calls, or are lost
        return make_recorded_point(episode.id, episode.world, episode.state, episode.states)
