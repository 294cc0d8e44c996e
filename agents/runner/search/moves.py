"""The moves of a search: each plays one more episode, from the start or from a step of one that was played before."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import StrEnum

from gymcp.outcome import Outcome
from gymcp.store.trees.stopped_leaves import PAUSED
from gymcp.types import Trajectory


class End(StrEnum):
    """The reason why an episode of a search has ended."""

    FINISHED = "finished"
    """The agent has said its last."""
    PAUSED = PAUSED
    """The search stopped it after its steps; it can go on."""
    FAILED = "failed"
    """The search stopped it after a call that failed."""
    CUT = "cut"
    """A budget of the episode is spent, or the agent has given up."""
    LOST = "lost"
    """The harness failed: a server was lost, or the world could not be copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An episode to play."""

    start: Leaf | None = None
    """Episode that it goes on from; None: a fresh world."""
    at: int = 0
    """Number of steps that it shares with `start`. There `start` was paused, or played with `keeps`."""
    steps: int | None = None
    """Steps of its own after which it is paused; None: it is played to its end."""
    keeps: bool = False
    """True if other episodes may go on from any of its own steps."""
    until_failure: bool = False
    """True to stop it after a step with a call that failed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """An episode that a search has played."""

    number: int
    """Its place in the order of playing, from 0."""
    move: Move
    end: End
    record: Trajectory
    """The whole path. It has no verdict unless the search may see verdicts."""
    judged: float | None = None
    """Score from 0 to 1 by a judge or a trained head; None if it was not asked, or gave no verdict."""

    @property
    def steps(self) -> int:
        """Number of steps of the path."""
        return len(self.record.steps)


Moves = Generator[Move, Leaf, Leaf]
"""A search under way: it yields moves, is sent the episodes that were played, and returns the one that it chooses."""


def find_end(record: Trajectory, stopped: End | None) -> End:
    """The end of an episode that the search has `stopped` in this way; None if it has not."""
    if record.outcome.is_infra or record.outcome is Outcome.CANCELLED:
        return End.LOST
    if stopped is not None:
        return stopped
    # a grader that fails says no more of the agent than one that gives a score
    return End.FINISHED if record.outcome in (Outcome.SCORED, Outcome.GRADER_ERROR) else End.CUT
