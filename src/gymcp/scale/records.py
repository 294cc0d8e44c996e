"""Records that the driver of a run and the workers on its nodes send to each other."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gymcp.envs.worlds.server_losses import UNTRIED, Attempts
from gymcp.errors import GymcpError
from gymcp.store import BranchRecord
from gymcp.types import Json, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One job, lent to one node until its record is back or the node is lost."""

    number: int
    """Unique in the run: a job that is lent again has another one."""
    task: Task | str
    """Its id alone if every node has the task."""
    trial: int
    seed: int
    policy_version: str
    attempts: Attempts = UNTRIED
    settings: Hashable = None
    """Settings with which it is played, beside those of the run. Jobs that are lent at the same time with the same
    settings differ in task or trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAttempt:
    """One attempt at a lent job, with its whole record."""

    serial: int
    """Place among the attempts of its worker, from 1."""
    lease: int
    trajectory: Trajectory
    states: Mapping[str, Json]
    branches: tuple[BranchRecord, ...]
    last: bool
    """False if the worker tries the job again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of a worker to the driver, such as a request for a sample."""

    number: int
    """Unique for its worker."""
    content: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The driver's answer to a question."""

    number: int
    """Number of the question."""
    content: Any = None
    error: GymcpError | None = None
    """Raised to the asker in place of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """News of a worker."""

    finished: tuple[FinishedAttempt, ...] = ()
    """Attempts that the driver has not acknowledged yet, in order."""
    questions: tuple[Question, ...] = ()
    """Questions that were asked since the last report."""
    withdrawn: tuple[int, ...] = ()
    """Numbers of earlier questions whose answers are not needed any more."""
    is_over: bool = False
    """True if the worker plays nothing any more: it was stopped, or the money of the run is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Everything that must be the same on the driver and on each node."""

    gymcp: str
    """Version of gymcp."""
    code: str
    """Digest of gymcp's own code."""
    python: str
    """Major and minor version."""


class Node(Protocol):
    """A machine whose worker plays leases, as the driver sees it. Every method ends in bounded time."""

    @property
    def name(self) -> str:
        """Name for people, unique in the cluster."""
        ...

    @property
    def concurrency(self) -> int | None:
        """Episodes at a time on this node; None: as many as the run's settings say."""
        ...

    async def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        """Lend jobs; return as soon as there is news, or after `worker.EXCHANGE_S` seconds.

        `acknowledged`: the largest serial that the driver has recorded. `spent_elsewhere`: the cost of the run so far,
        without this node's. Raises NodeLost.
        """
        ...

    async def lend(self, leases: Sequence[Lease]) -> None:
        """Lend jobs while an exchange is under way, which goes on. Raises NodeLost."""
        ...

    async def answer(self, answers: Sequence[Answer]) -> None:
        """Answer questions; may be called while an exchange is under way. Raises NodeLost."""
        ...

    async def stop(self, acknowledged: int) -> Report:
        """Cancel the episodes under way and return the attempts that are not acknowledged. Raises NodeLost."""
        ...

    def end(self) -> None:
        """End the worker at once."""
        ...


class NodePool(Protocol):
    """The nodes of a cluster."""

    async def join(self) -> Sequence[Node]:
        """Nodes with an opened worker that have joined since the last call, the first ones included."""
        ...
