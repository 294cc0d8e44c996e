"""Nodes of a Ray cluster: one worker actor on each, and calls to it that always end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gymcp.errors import ConfigError, GymcpError, NodeLost
from gymcp.scale.agreement import compare_configs, compare_facts, describe_machine
from gymcp.scale.records import Answer, Lease, Node, NodeFacts, Report
from gymcp.scale.worker import EXCHANGE_S, STOP_S, OpenPlay, Worker
from gymcp.types import Json

CONNECT_S = 10.0
"""Seconds until the port of the cluster answers."""
START_S = 120.0
"""Seconds until an actor answers for the first time: a process that imports gymcp."""
OPEN_S = 900.0
"""Seconds until a worker has opened its run: servers, and perhaps a model."""
PARKED_S = 60.0
"""Seconds without any answer after which a node is lost, though Ray says that its actor lives."""
PARENT_POLL_S = 1.0
"""Seconds between two looks at the process of Ray that started an actor."""
REOPEN_S = 30.0
"""Seconds after the loss of a worker before its node gets another: Ray lists a dead node as alive for about 20 s."""
MAX_WORKERS = 3
"""Number of workers that a node may have in one run, one after another."""
MAX_CALLS = 8
"""Calls of a worker that may be under way at a time: an exchange, its end, and answers."""
SHORT_ID = 8
"""Characters of a node's id in its name: several nodes may share a host."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Actor:
    """The worker of a node, inside Ray. `MAX_CALLS` calls may be under way at a time."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        threading.Thread(target=_end_with_parent, name="gymcp watch", daemon=True).start()

    def describe(self) -> NodeFacts:
        return describe_machine()

    def open(self, open_play: OpenPlay) -> Mapping[str, Json]:
        self._worker = Worker(open_play)
        return self._worker.wait_until_open(OPEN_S)

    def call(self, function: Callable[[], Any]) -> Any:
        return function()

    def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        assert self._worker is not None
        return self._worker.exchange(leases, acknowledged, spent_elsewhere)

    def answer(self, answers: Sequence[Answer]) -> None:
        assert self._worker is not None
        self._worker.answer(answers)

    def stop(self, acknowledged: int) -> Report:
        assert self._worker is not None
        report = self._worker.stop(acknowledged)
        self._worker.close()
        return report


def _end_with_parent() -> None:
    """End this process once Ray's own process of the node has ended: Ray's check takes half a minute, and may hang."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(1)  # the servers end with it


class RayNode:
    """A node of the cluster with its actor."""

    def __init__(self, name: str, node_id: str, parked_s: float = PARKED_S) -> None:
        self._name = name
        self.id = node_id
        self._parked_s = parked_s
        self.ended_at: float | None = None
        """Time of `end`, by the monotonic clock; None before."""
        # without CPUs of its own, so that it can always be placed; never started again by Ray, which knows no episodes
        place = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
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

    async def describe(self) -> NodeFacts:
        """Raises NodeLost."""
        facts: NodeFacts = await self._ask(self._actor.describe.remote(), START_S)
        return facts

    async def call(self, function: Callable[[], T]) -> T:
        """The result of a function of a module, called on the node. Raises NodeLost, and GymcpError as it does."""
        result: T = await self._ask(self._actor.call.remote(function), START_S)
        return result

    async def open(self, open_play: OpenPlay) -> Mapping[str, Json]:
        """Open the run on the node; return its config. Raises NodeLost, and GymcpError as `open_play` does."""
        config: Mapping[str, Json] = await self._ask(self._actor.open.remote(open_play), OPEN_S + self._parked_s)
        return config

    async def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        """See `records.Node`."""
        answer = self._actor.exchange.remote(leases, acknowledged, spent_elsewhere)
        report: Report = await self._ask_worker(answer, EXCHANGE_S + self._parked_s)
        return report

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
            return await self._ask(answer, timeout_s)
        except NodeLost:
            raise
        except GymcpError as error:
            raise NodeLost(f"its worker broke: {error}") from error

    async def _ask(self, answer: Any, timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(answer.future())
        except TimeoutError:
            raise NodeLost(f"no answer for {timeout_s:g} s, though Ray calls it alive") from None
        except RayTaskError as error:
            if isinstance(error.cause, GymcpError):
                raise error.cause from None
            raise NodeLost(f"its worker raised {type(error.cause).__name__}: {error.cause}") from error
        except RayError as error:
            raise NodeLost(_describe_death(error)) from error


def _describe_death(error: RayError) -> str:
    """One sentence about an actor that is gone; Ray's own message has many lines."""
    if "ModuleNotFoundError" in str(error):
        return "gymcp, or what it needs, is not installed there"
    if isinstance(error, ActorUnavailableError):
        return "its worker cannot be reached"
    if isinstance(error, ActorDiedError):
        return "its worker has died"
    return f"Ray says {type(error).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToOpen:
    """A run that nodes open."""

    open_play: OpenPlay
    """Pickled: a function of a module, with its arguments."""
    config: Mapping[str, Json]
    """Everything that scores depend on, which must be the same on each node; of an evaluation its ``run.json``."""


class RayPool:
    """The nodes of a cluster that take work: those with CPUs. A head started with none only coordinates."""

    def __init__(self, run: RunToOpen, *, parked_s: float = PARKED_S, reopen_s: float = REOPEN_S) -> None:
        self._run = run
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
        results = await asyncio.gather(*(self._open(node) for node in nodes), return_exceptions=True)
        unfit = []
        for node, result in zip(nodes, results, strict=True):
            if isinstance(result, GymcpError):
                unfit.append(f"node {node.name}: {result}")
            elif isinstance(result, BaseException):
                raise result
        if unfit:
            raise ConfigError("\n".join(unfit))
        self._first = list(nodes)

    async def join(self) -> Sequence[Node]:
        """See `records.NodePool`. A later node that is not fit is left out, with a warning."""
        if self._first:
            first, self._first = self._first, []
            return first
        fit: list[Node] = []
        for node in self._find_new():
            try:
                await self._open(node)
            except GymcpError as error:
                log.warning("node %s has joined, and gets no episodes: %s", node.name, error)
                node.end()
            else:
                log.warning("node %s has joined", node.name)
                fit.append(node)
        return fit

    def _find_new(self) -> list[RayNode]:
        """Nodes that are new, or that were lost a while ago and live: a broken line is mended by another worker."""
        found = list_nodes(self._parked_s, self._may_open)
        for node in found:
            self._workers.setdefault(node.id, []).append(node)
        return found

    def _may_open(self, id: str) -> bool:
        workers = self._workers.get(id, [])
        if not workers:
            return True
        ended_at = workers[-1].ended_at
        return ended_at is not None and time.monotonic() - ended_at > self._reopen_s and len(workers) < MAX_WORKERS

    async def _open(self, node: RayNode) -> None:
        """Raises GymcpError if the node is not fit."""
        if different := compare_facts(describe_machine(), await node.describe()):
            raise ConfigError("; ".join(different))
        if different := compare_configs(self._run.config, await node.open(self._run.open_play)):
            raise ConfigError("; ".join(different))


def list_nodes(parked_s: float = PARKED_S, may_open: Callable[[str], bool] = lambda id: True) -> list[RayNode]:
    """The nodes of the cluster that have CPUs, and whose id is accepted, each with a new actor."""
    return [
        RayNode(f"{row['NodeManagerHostname']}/{row['NodeID'][:SHORT_ID]}", row["NodeID"], parked_s)
        for row in ray.nodes()
        if row["Alive"] and row["Resources"].get("CPU", 0) > 0 and may_open(row["NodeID"])
    ]


@contextlib.contextmanager
def connect_ray(address: str) -> Iterator[None]:
    """Connect to the cluster at ``HOST:PORT``, or to the one that `auto` finds on this machine. Raises ConfigError."""
    if "://" in address:
        raise ConfigError(f"--ray {address}: start gymcp on a node of the cluster, with --ray auto or HOST:PORT")
    _check_port(address)
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # pages of a dead node's own log; the loss is told in one line
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="gymcp")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(f"--ray {address}: no cluster can be reached: {line}; start one: ray start --head") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_port(address: str) -> None:
    """Raise ConfigError if nothing listens at ``HOST:PORT``, which takes Ray minutes to find out."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdecimal():
        raise ConfigError(f"--ray {address}: is no address; give HOST:PORT, as `ray start --head` prints it, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        why = f"no cluster there: {error.strerror or error}"
        raise ConfigError(f"--ray {address}: {why}; start one: ray start --head") from error
