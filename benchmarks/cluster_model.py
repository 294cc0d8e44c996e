"""A discrete-event model of a run over many nodes: the driver's real book of leases, and costs in place of work.

The driver is one process: it answers one node at a time, and recording an attempt takes its time. A node plays
`concurrency` episodes at a time; it has at most one exchange with the driver under way, as `gymcp.scale.distribution`
has it, and sends everything that has finished meanwhile. Episodes wait for a policy most of their time; if they need
more CPU than the node has, all of them take longer. If samples go through the driver, as those of a training and of a
policy that is placed on a node do, an episode waits for its exchange and its turn there.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gymcp.agents.runner.rollout import Job
from gymcp.scale.leases import Batch, LeaseBook, count_room
from gymcp.types import Task

STEADY = (0.2, 0.6)
"""Shares of recorded episodes between which a run is steady."""
TASK = Task(id="task", prompts=("Play.",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds, as measured."""

    episode_s: float
    """Mean length of an episode on an idle node."""
    episode_cpu_s: float
    """CPU time of an episode on its node."""
    record_s: float
    """The driver's time for one attempt: unpickled, recorded, shown."""
    exchange_s: float
    """The driver's time for one exchange without an attempt."""
    sample_s: float = 0.0
    """The driver's time for one sample that goes through it, beside its exchange: asked for, answered."""
    samples: int = 0
    """Number of such samples in an episode, at equal distances."""
    spread: float = 0.0
    """Standard deviation of the logarithm of an episode's length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    nodes: int
    concurrency: int
    """Episodes at a time on one node."""
    cores: float
    """CPUs of one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures of a simulated run."""

    seconds: float
    """Until the last episode was recorded."""
    steady_rate: float
    """Episodes a second while a fifth to three fifths of them are recorded: neither the start nor the last ones."""
    driver_share: float
    """Share of that time in which the driver works."""
    exchanges: int
    ideal_rate: float
    """Episodes a second if no node ever waited."""

    @property
    def efficiency(self) -> float:
        """The steady rate as a share of the ideal one."""
        return self.steady_rate / self.ideal_rate


@dataclass(slots=True)
class _Node:
    name: str
    waiting: deque[int] = field(default_factory=deque)
    """Leases that no place is free for."""
    finished: list[int] = field(default_factory=list)
    asking: list[Callable[[], None]] = field(default_factory=list)
    """Episodes that wait for a sample which the driver has not been asked for; a call lets one go on."""
    playing: int = 0
    is_answering: bool = False
    """True while the driver has, or waits for, the node's report."""


class _Simulation:
    def __init__(self, cluster: Cluster, costs: Costs, episodes: int, seed: int) -> None:
        self._cluster = cluster
        self._costs = costs
        self._random = random.Random(seed)
        self._book = LeaseBook(max_losses=1)
        jobs = (Job(task=TASK, trial=n, seed=n) for n in range(episodes))
        self._book.add(jobs, Batch(on_rollout=lambda rollout, last: None))
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._queue: deque[_Node] = deque()
        """Nodes that wait for the driver."""
        self._driver_works = False
        self._busy_s = 0.0
        self._exchanges = 0
        self._recorded = 0
        self._ideal_rate = cluster.nodes * cluster.concurrency / (costs.episode_s * crowd(cluster, costs))
        self._episodes = episodes
        self._steady: list[tuple[float, float, int]] = []
        """Time, the driver's busy time and the recorded episodes at the two ends of the steady part."""

    def run(self) -> Outcome:
        """Play all episodes."""
        for number in range(self._cluster.nodes):
            self._report(_Node(str(number)))
        while self._events and not self._book.is_done:
            self._now, _, event = heapq.heappop(self._events)
            event()
            if len(self._steady) < len(STEADY) and self._recorded >= STEADY[len(self._steady)] * self._episodes:
                self._steady.append((self._now, self._busy_s, self._recorded))
        (began, busy_before, before), (ended, busy_after, after) = self._steady
        return Outcome(
            seconds=self._now,
            steady_rate=(after - before) / (ended - began),
            driver_share=(busy_after - busy_before) / (ended - began),
            exchanges=self._exchanges,
            ideal_rate=self._ideal_rate,
        )

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._order), event))

    def _report(self, node: _Node) -> None:
        """The node has something to say, or is new."""
        node.is_answering = True
        self._queue.append(node)
        self._serve_next()

    def _serve_next(self) -> None:
        if self._driver_works or not self._queue:
            return
        self._driver_works = True
        node = self._queue.popleft()
        finished, node.finished = node.finished, []
        asking, node.asking = node.asking, []
        seconds = self._costs.exchange_s + len(finished) * self._costs.record_s
        for go_on in asking:
            seconds += self._costs.sample_s
            self._after(seconds, go_on)
        self._busy_s += seconds
        self._exchanges += 1
        self._after(seconds, lambda: self._answer(node, finished))

    def _answer(self, node: _Node, finished: list[int]) -> None:
        """The driver has recorded the report and lends the node more."""
        self._driver_works = False
        for lease in finished:
            self._book.finish(node.name, lease)
        self._recorded += len(finished)
        cluster = self._cluster
        room = count_room(self._book, node.name, concurrency=cluster.concurrency, nodes=cluster.nodes)
        node.waiting.extend(lease.number for lease in self._book.lend(node.name, room))
        node.is_answering = False
        self._fill(node)
        if node.finished or node.asking:
            self._report(node)
        self._serve_next()

    def _fill(self, node: _Node) -> None:
        while node.waiting and node.playing < self._cluster.concurrency:
            lease = node.waiting.popleft()
            node.playing += 1
            self._play(node, lease, self._length() / (self._costs.samples + 1), self._costs.samples)

    def _play(self, node: _Node, lease: int, seconds: float, samples: int) -> None:
        """Play the episode to its next sample or, if it needs none, to its end. `seconds`: of each such part."""
        if samples:
            self._after(seconds, partial(self._ask, node, partial(self._play, node, lease, seconds, samples - 1)))
        else:
            self._after(seconds, partial(self._finish, node, lease))

    def _ask(self, node: _Node, go_on: Callable[[], None]) -> None:
        node.asking.append(go_on)
        if not node.is_answering:
            self._report(node)

    def _finish(self, node: _Node, lease: int) -> None:
        node.playing -= 1
        node.finished.append(lease)
        self._fill(node)
        if not node.is_answering:
            self._report(node)

    def _length(self) -> float:
        """Seconds of the next episode: longer if the node lacks CPUs."""
        costs, spread = self._costs, self._costs.spread
        factor = math.exp(self._random.gauss(-spread * spread / 2, spread)) if spread else 1.0
        return costs.episode_s * factor * crowd(self._cluster, costs)


def crowd(cluster: Cluster, costs: Costs) -> float:
    """Factor by which episodes take longer because the CPUs of their node are busy."""
    return max(1.0, cluster.concurrency * costs.episode_cpu_s / (cluster.cores * costs.episode_s))


def simulate(cluster: Cluster, costs: Costs, *, episodes: int, seed: int = 0) -> Outcome:
    """Play so many episodes on the cluster."""
    return _Simulation(cluster, costs, episodes, seed).run()
