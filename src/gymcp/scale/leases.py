"""The book of lent jobs: each job of a run waits, is lent to one node, or is finished."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gymcp.agents.runner.rollout import Job
from gymcp.scale.records import Lease

AHEAD_SHARE = 0.25
"""Jobs lent to a node beyond those that it plays, as a share of them: it never waits for the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLease:
    """A job whose node was lost."""

    job: Job
    is_final: bool
    """True if it has been lost too often to be lent again."""


@dataclass(slots=True)
class _Entry:
    job: Job
    losses: int = 0


class LeaseBook:
    """Place of each job. A job that is given back goes to the front: others of its task may have ended already."""

    def __init__(self, jobs: Iterable[Job], *, max_losses: int) -> None:
        """`max_losses`: number of nodes that may be lost with the same job before it stays lost."""
        self._waiting = deque(_Entry(job) for job in jobs)
        self._lent: dict[str, dict[int, _Entry]] = {}
        self.lent = 0
        """Number of jobs that all nodes have."""
        self._max_losses = max_losses
        self._numbers = itertools.count(1)

    @property
    def waiting(self) -> int:
        """Number of jobs that no node has."""
        return len(self._waiting)

    @property
    def is_done(self) -> bool:
        """True if no job waits and none is lent."""
        return not self._waiting and not self.lent

    def count_lent(self, node: str) -> int:
        """Number of jobs that the node has."""
        return len(self._lent.get(node, {}))

    def lend(self, node: str, count: int) -> Sequence[Lease]:
        """Lend the node up to `count` jobs."""
        leases = []
        for _ in range(min(count, len(self._waiting))):
            entry = self._waiting.popleft()
            number = next(self._numbers)
            self._lent.setdefault(node, {})[number] = entry
            self.lent += 1
            job = entry.job
            leases.append(
                Lease(
                    number=number,
                    task=job.task.id,
                    trial=job.trial,
                    seed=job.seed,
                    policy_version=job.policy_version,
                )
            )
        return leases

    def find(self, node: str, lease: int) -> Job | None:
        """The job of the lease; None if the node does not have it (any more)."""
        entry = self._lent.get(node, {}).get(lease)
        return entry.job if entry is not None else None

    def finish(self, node: str, lease: int) -> None:
        """The job's last record is there."""
        del self._lent[node][lease]
        self.lent -= 1

    def return_failed(self, node: str, lease: int) -> bool:
        """Let a job wait again that failed on this node, for another one; False if it has been lost too often."""
        entry = self._lent[node][lease]
        entry.losses += 1
        if entry.losses >= self._max_losses:
            return False
        self.finish(node, lease)
        self._waiting.append(entry)
        return True

    def lose(self, node: str) -> Sequence[LostLease]:
        """Take back all jobs of a lost node, each of which waits again unless it has been lost too often."""
        lost = []
        for entry in reversed(self._lent.pop(node, {}).values()):
            self.lent -= 1
            entry.losses += 1
            is_final = entry.losses >= self._max_losses
            lost.append(LostLease(job=entry.job, is_final=is_final))
            if not is_final:
                self._waiting.appendleft(entry)
        return lost


def count_room(book: LeaseBook, node: str, *, concurrency: int, nodes: int) -> int:
    """Number of jobs to lend to the node: some ahead while many wait, and of few no more than an equal share.

    One for a free place in any case: its node may be faster than the others.
    """
    lent = book.count_lent(node)
    most = concurrency
    if book.waiting > 2 * concurrency * nodes:
        most += math.ceil(AHEAD_SHARE * concurrency)
    share = math.ceil((book.waiting + book.lent) / max(1, nodes)) - lent
    return max(0, min(most - lent, max(share, int(lent < concurrency))))
