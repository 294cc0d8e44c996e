"""A whole tree as one job: its first episode, then its branches one after another, so that it can be played alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.trees.controller import Controller, TreeBudget
from gymcp.agents.runner.trees.tree import Fork, Steers, Tree
from gymcp.outcome import Outcome
from gymcp.store import BranchRecord
from gymcp.types import Json, Trajectory

CUT_SHORT = "interrupted before its tree was complete"
"""Reason of the record of a tree that is played again as a whole on resume."""

PlayEpisode = Callable[[Job, Steers], Awaitable[Rollout]]
"""Plays one episode of a tree."""


async def play_tree(
    job: Job,
    controller: Controller,
    budget: TreeBudget,
    play: PlayEpisode,
    *,
    must_stop: Callable[[], bool],
) -> Rollout:
    """Play the job's first episode and all that branch off it; failures become outcomes, as in `rollout`.

    A branch whose world cannot be copied or replayed, or whose server is lost, has an outcome without a score and is
    not tried again; the others go on. If the harness fails in the first episode, its branches are played at the last
    attempt only. A tree is recorded as a whole: once `must_stop` returns True, or an episode is cancelled, the record
    is that of its first episode, ``cancelled``, with the cost of all.
    """
    tree = Tree(controller=controller, budget=budget, task=job.task.id, trial=job.trial, seed=job.seed)
    try:
        root = await play(job, tree.steer())
        if root.trajectory.outcome.is_infra and not job.attempts.is_last:
            return root
        tree.note_end(root.trajectory)
        branches: list[BranchRecord] = []
        known: dict[str, Json] = dict(root.states)
        while tree.waiting:
            if root.trajectory.outcome is Outcome.CANCELLED or must_stop():
                return cut_short(root, tree.spent.cost)
            fork = tree.waiting.popleft()
            played = await play(job, tree.steer(fork))
            tree.note_end(played.trajectory)
            if played.trajectory.outcome is Outcome.CANCELLED:
                return cut_short(root, tree.spent.cost)
            branches.append(_make_record(fork, played.trajectory, played.states, known))
            known |= played.states
        return replace(root, branches=tuple(branches))
    finally:
        tree.discard()


def _make_record(
    fork: Fork, trajectory: Trajectory, states: Mapping[str, Json], known: Mapping[str, Json]
) -> BranchRecord:
    """The record of a branch, with the states that no episode before it has seen."""
    new = {ref: state for ref, state in states.items() if ref not in known}
    return BranchRecord(trajectory=trajectory, branch=fork.branch, shared=fork.shared, states=new)


def cut_short(root: Rollout, cost: float) -> Rollout:
    """The record of a tree that was not played to its end, whose episodes have cost so much together."""
    first = root.trajectory
    usage = replace(first.usage, cost=cost)
    if first.outcome is Outcome.CANCELLED:
        return replace(root, trajectory=replace(first, usage=usage))
    record = replace(first, outcome=Outcome.CANCELLED, score=None, components={}, reason=CUT_SHORT, usage=usage)
    return replace(root, trajectory=record)
