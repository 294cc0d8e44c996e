"""Nodes of a Ray cluster: one worker actor on each, and calls to it that always end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gymcp.errors import ConfigError, GymcpError, NodeLost
from gymcp.scale.agreement import compare_configs, compare_facts, describe_machine
from gymcp.scale.copies.records import FileSet, PlacedFiles
from gymcp.scale.copies.sending import RunFiles, copy_files
from gymcp.scale.plan import ClusterNode, NodeGroup
from gymcp.scale.ray_calls import await_answer, end_with_parent, list_cluster
from gymcp.scale.records import Answer, Lease, Node, NodeFacts, Report
from gymcp.scale.worker import EXCHANGE_S, STOP_S, OpenedPlay, OpenPlay, Worker
from gymcp.types import Json

START_S = 120.0
"""Seconds until an actor answers for the first time: a process that imports gymcp."""
OPEN_S = 900.0
"""Seconds until a worker has opened its run: servers, and perhaps a model."""
PARKED_S = 60.0
"""Seconds without any answer after which a node is lost, though Ray says that its actor lives."""
REOPEN_S = 30.0
"""Seconds after the loss of a worker before its node gets another: Ray lists a dead node as alive for about 20 s."""
MAX_WORKERS = 3
"""Number of workers that a node may have in one run, one after another."""
MAX_CALLS = 8
"""Calls of a worker that may be under way at a time: an exchange, its end, answers, and leases."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Actor:
    """The worker of a node, inside Ray. `MAX_CALLS` calls may be under way at a time."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        threading.Thread(target=end_with_parent, name="gymcp watch", daemon=True).start()

    def describe(self) -> NodeFacts:
        return describe_machine()

    def open(self, open_play: OpenPlay) -> Mapping[str, Json]:
        self._worker = Worker(open_play)
        return self._worker.wait_until_open(OPEN_S)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        assert self._worker is not None
        return self._worker.exchange(leases, acknowledged, spent_elsewhere)

    def lend(self, leases: Sequence[Lease]) -> None:
        assert self._worker is not None
        self._worker.lend(leases)

    def answer(self, answers: Sequence[Answer]) -> None:
        assert self._worker is not None
        self._worker.answer(answers)

    def stop(self, acknowledged: int) -> Report:
        assert self._worker is not None
        report = self._worker.stop(acknowledged)
        self._worker.close()
        return report


class RayNode:
    """A node of the cluster with its actor."""

    def __init__(self, node: ClusterNode, group: NodeGroup, parked_s: float = PARKED_S) -> None:
        self._name = node.name
        self.id = node.id
        self.group = group
        self._parked_s = parked_s
        self.ended_at: float | None = None
        """Time of `end`, by the monotonic clock; None before."""
        # without CPUs of its own, so that it can always be placed; never started again by Ray, which knows no episodes
        place = NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
        options: dict[str, Any] = {
            "num_cpus": 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": MAX_CALLS,
        }
        self._actor = ray.remote(**options)(_Actor).options(scheduling_strategy=place).remote()

    @property
    def name(self) -> str:
        """Host and beginning of the node's id."""
        return self._name

    @property
    def concurrency(self) -> int | None:
        """See `records.Node`."""
        return self.group.concurrency

    async def describe(self) -> NodeFacts:
        """Raises NodeLost."""
        facts: NodeFacts = await await_answer(self._actor.describe.remote(), START_S)
        return facts

    async def call(self, function: Callable[..., T], *arguments: Any, timeout_s: float = START_S) -> T:
        """The result of a function of a module, called on the node. Raises NodeLost, and GymcpError as it does.

        An argument that `ray.put` gave is the object itself there.
        """
        result: T = await await_answer(self._actor.call.remote(function, *arguments), timeout_s)
        return result

    async def open(self, open_play: OpenPlay) -> Mapping[str, Json]:
        """Open the run on the node; return its config. Raises NodeLost, and GymcpError as `open_play` does."""
        config: Mapping[str, Json] = await await_answer(self._actor.open.remote(open_play), OPEN_S + self._parked_s)
        return config

    async def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        """See `records.Node`."""
        answer = self._actor.exchange.remote(leases, acknowledged, spent_elsewhere)
        report: Report = await self._ask_worker(answer, EXCHANGE_S + self._parked_s)
        return report

    async def lend(self, leases: Sequence[Lease]) -> None:
        """See `records.Node`."""
        await self._ask_worker(self._actor.lend.remote(leases), self._parked_s)

    async def answer(self, answers: Sequence[Answer]) -> None:
        """See `records.Node`."""
        await self._ask_worker(self._actor.answer.remote(answers), self._parked_s)

    async def stop(self, acknowledged: int) -> Report:
        """See `records.Node`."""
        report: Report = await self._ask_worker(self._actor.stop.remote(acknowledged), 2 * STOP_S)
        return report

    def end(self) -> None:
        """See `records.Node`."""
        self.ended_at = time.monotonic()
        with contextlib.suppress(RayError, ValueError):  # it is dead already
            ray.kill(self._actor)

    async def _ask_worker(self, answer: Any, timeout_s: float) -> Any:
        """The answer of an opened worker. Raises NodeLost, also for a defect of the worker."""
        try:
            return await await_answer(answer, timeout_s)
        except NodeLost:
            raise
        except GymcpError as error:
            raise NodeLost(f"its worker broke: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToOpen:
    """A run that nodes open."""

    open_play: Callable[[NodeGroup, PlacedFiles, asyncio.Runner], AbstractContextManager[OpenedPlay]]
    """An `OpenPlay` once it has its first arguments. Pickled: a function of a module, with its arguments."""
    config: Mapping[str, Json]
    """Everything that scores depend on, which must be the same on each node; of an evaluation its ``run.json``."""
    files: RunFiles = field(default_factory=lambda: RunFiles(files=FileSet(folder=str(Path.cwd()))))
    """Files that are copied to nodes which lack them."""
    find_group: Callable[[ClusterNode], NodeGroup | None] = lambda node: NodeGroup()
    """The group of a node of the cluster; None if it does not play."""


class RayPool:
    """The nodes of a cluster that take work: those with CPUs. A head started with none only coordinates."""

    def __init__(
        self,
        run: RunToOpen,
        *,
        say: Callable[[str], None] = lambda line: None,
        parked_s: float = PARKED_S,
        reopen_s: float = REOPEN_S,
    ) -> None:
        """`say`: gets a line for people about each node that files were copied to."""
        self._run = run
        self._say = say
        self._parked_s = parked_s
        self._reopen_s = reopen_s
        self._workers: dict[str, list[RayNode]] = {}
        """Id of a node -> its workers so far; all but the last have ended."""
        self._first: list[Node] = []

    async def open_first(self) -> None:
        """Open the run on all nodes of the cluster. Raises ConfigError, which names each node that is not fit."""
        nodes = self._find_new()
        if not nodes:
            raise ConfigError("--ray: the cluster has no node with a CPU; start one: ray start --address=HEAD:PORT")
        if unfit := [f"node {name}: {error}" for name, error in (await self._open(nodes)).items()]:
            raise ConfigError("\n".join(unfit))
        self._first = list(nodes)

    async def join(self) -> Sequence[Node]:
        """See `records.NodePool`. A later node that is not fit is left out, with a warning."""
        if self._first:
            first, self._first = self._first, []
            return first
        new = self._find_new()
        unfit = await self._open(new)
        for node in new:
            if node.name in unfit:
                log.warning("node %s has joined, and gets no episodes: %s", node.name, unfit[node.name])
                node.end()
            else:
                log.warning("node %s has joined", node.name)
        return [node for node in new if node.name not in unfit]

    def _find_new(self) -> list[RayNode]:
        """Nodes that are new, or that were lost a while ago and live: a broken line is mended by another worker."""
        found = list_nodes(self._run.find_group, self._parked_s, self._may_open)
        for node in found:
            self._workers.setdefault(node.id, []).append(node)
        return found

    def _may_open(self, id: str) -> bool:
        workers = self._workers.get(id, [])
        if not workers:
            return True
        ended_at = workers[-1].ended_at
        return ended_at is not None and time.monotonic() - ended_at > self._reopen_s and len(workers) < MAX_WORKERS

    async def _open(self, nodes: Sequence[RayNode]) -> dict[str, GymcpError]:
        """Copy what the nodes lack and open the run on them; the names of those that are not fit, each with why."""
        compared = await asyncio.gather(*(_find_error(_compare_machine(node)) for node in nodes))
        unfit = {node.name: error for node, error in zip(nodes, compared, strict=True) if error is not None}
        alike = [node for node in nodes if node.name not in unfit]
        try:
            placed = await copy_files(alike, self._run.files, ray.put, self._say)
        except ConfigError as error:  # a file of the driver is gone
            return unfit | {node.name: error for node in alike}
        opening = [
            _raise(where) if isinstance(where, GymcpError) else self._open_run(node, where)
            for node, where in zip(alike, placed, strict=True)
        ]
        opened = await asyncio.gather(*map(_find_error, opening))
        return unfit | {node.name: error for node, error in zip(alike, opened, strict=True) if error is not None}

    async def _open_run(self, node: RayNode, placed: PlacedFiles) -> None:
        """Raises GymcpError if the run is another one there."""
        open_play = partial(self._run.open_play, node.group, placed)
        if different := compare_configs(self._run.config, await node.open(open_play)):
            raise ConfigError("; ".join(different))


async def _compare_machine(node: RayNode) -> None:
    """Raises GymcpError if the node cannot run this code."""
    if different := compare_facts(describe_machine(), await node.describe()):
        raise ConfigError("; ".join(different))


async def _raise(error: GymcpError) -> None:
    raise error


async def _find_error(work: Coroutine[Any, Any, None]) -> GymcpError | None:
    try:
        await work
    except GymcpError as error:
        return error
    return None


def list_nodes(
    find_group: Callable[[ClusterNode], NodeGroup | None] = lambda node: NodeGroup(),
    parked_s: float = PARKED_S,
    may_open: Callable[[str], bool] = lambda id: True,
) -> list[RayNode]:
    """The nodes of the cluster that have CPUs and a group, and whose id is accepted, each with a new actor."""
    return [
        RayNode(node, group, parked_s)
        for node in list_cluster()
        if node.resources.get("CPU") and may_open(node.id) and (group := find_group(node)) is not None
    ]
