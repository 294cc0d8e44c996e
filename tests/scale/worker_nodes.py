"""Nodes without Ray: workers in processes of their own, and lines to them that break."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.errors import NodeLost
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.scale.records import Answer, Lease, Node, Report
from gymcp.scale.worker import OpenedPlay, OpenPlay, Worker

BANK = str(Path(__file__).parents[2] / "examples" / "bank.py")
CONCURRENCY = 2
WAIT_S = 300.0


class _Process(BaseManager):
    """A process that holds a worker."""


_Process.register("make_worker", Worker)


@contextlib.contextmanager
def open_bank(
    runner: asyncio.Runner, *, name: str = BANK, cost: float | None = None, is_broken: bool = False
) -> Iterator[OpenedPlay]:
    """The bank on this machine; `is_broken`: on one that cannot start its server."""
    env = load_env(load_spec(name))
    schedule = Schedule(concurrency=CONCURRENCY, max_attempts=1)
    budget = RunBudget(cost)
    played = break_servers(env) if is_broken else env
    yield OpenedPlay(
        config={},
        tasks={task.id: task for task in env.suite.tasks},
        budget=budget,
        play=lambda jobs: run_jobs(played, get_sandbox("bwrap"), SCRIPTED["oracle"], jobs, schedule, jobs.keep, budget),
    )


def break_servers(env: LoadedEnv) -> LoadedEnv:
    """The environment with a program that is not there as its server."""
    return replace(env, servers=tuple(replace(server, argv=("/no/such/program",), fork=None) for server in env.servers))


class WorkerNode:
    """A worker in a process of its own, and a line to it that may lose one answer."""

    def __init__(self, name: str, open_play: OpenPlay = open_bank, *, loses_answer: int = 0) -> None:
        self._name = name
        self._process = _Process(ctx=multiprocessing.get_context("spawn"))
        self._process.start()
        self._worker: Any = self._process.make_worker(open_play)  # type: ignore[attr-defined]  # registered above
        self._loses_answer = loses_answer
        self._answers = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def concurrency(self) -> int | None:
        return None

    async def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        await asyncio.to_thread(self._worker.wait_until_open, WAIT_S)
        report: Report = await asyncio.to_thread(self._worker.exchange, leases, acknowledged, spent_elsewhere)
        self._answers += bool(report.finished)
        if self._answers and self._answers == self._loses_answer:
            raise NodeLost("the answer was lost on its way")
        return report

    async def lend(self, leases: Sequence[Lease]) -> None:
        await asyncio.to_thread(self._worker.lend, leases)

    async def answer(self, answers: Sequence[Answer]) -> None:
        await asyncio.to_thread(self._worker.answer, answers)

    async def stop(self, acknowledged: int) -> Report:
        report: Report = await asyncio.to_thread(self._worker.stop, acknowledged)
        await asyncio.to_thread(self._worker.close)
        return report

    def end(self) -> None:
        self._process.shutdown()


BROKEN: OpenPlay = partial(open_bank, is_broken=True)


class Pool:
    """Nodes that are there from the start, and one that joins afterwards."""

    def __init__(self, *nodes: Node, late: Node | None = None) -> None:
        self._joining = [list(nodes), [] if late is None else [late]]

    async def join(self) -> Sequence[Node]:
        return self._joining.pop(0) if self._joining else []
