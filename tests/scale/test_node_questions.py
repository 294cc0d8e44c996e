"""Questions of schedulers on a node to the driver: answered, refused, withdrawn."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace

import pytest
from worker_nodes import WAIT_S

from gymcp.agents.strategies.budgets import RunBudget
from gymcp.errors import PolicyInfraError
from gymcp.scale.records import Answer, Lease, Question
from gymcp.scale.worker import LeasedJobs, OpenedPlay, Worker
from gymcp.types import Task

TASK = Task(id="task", prompts=("Do it.",))
Play = Callable[[LeasedJobs], Coroutine[None, None, None]]


def make_lease(number: int, settings: str) -> Lease:
    return Lease(number=number, task=TASK, trial=0, seed=0, policy_version="", settings=settings)


@contextlib.contextmanager
def run_worker(play: Play) -> Iterator[Worker]:
    """A worker in this process whose jobs are played by `play`."""

    @contextlib.contextmanager
    def open_play(runner: asyncio.Runner) -> Iterator[OpenedPlay]:
        yield OpenedPlay(config={}, tasks={}, budget=RunBudget(), play=play)

    worker = Worker(open_play)
    worker.wait_until_open(WAIT_S)
    try:
        yield worker
    finally:
        worker.close()


def collect_questions(worker: Worker, leases: Sequence[Lease], count: int) -> list[Question]:
    """The first questions of the plays of these leases; as many, or those that came within `WAIT_S`."""
    found, deadline = [*worker.exchange(leases, 0, 0.0).questions], time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += worker.exchange([], 0, 0.0).questions
    return found


async def ask_twice(jobs: LeasedJobs) -> None:
    """Asks what the answer to its first question says."""
    while (job := await jobs.take()) is not None:
        await jobs.ask(await jobs.ask((jobs.settings, job.task.id)))


def test_leases_of_different_settings_are_played_side_by_side_and_each_asker_gets_its_answer() -> None:
    with run_worker(ask_twice) as worker:
        questions = collect_questions(worker, [make_lease(1, "warm"), make_lease(2, "greedy")], 2)
        asked = {question.content: question.number for question in questions}
        assert asked.keys() == {("warm", "task"), ("greedy", "task")}
        worker.answer([Answer(number=number, content=settings) for (settings, _), number in asked.items()])
        again = collect_questions(worker, [], 2)
    assert {question.content for question in again} == {"warm", "greedy"}


def test_a_job_that_is_lent_beside_an_exchange_is_played() -> None:
    async def ask_about_two(jobs: LeasedJobs) -> None:
        first, second = await jobs.take(), await jobs.take()
        assert first is not None
        assert second is not None
        await jobs.ask((first.seed, second.seed))

    with run_worker(ask_about_two) as worker:
        for number in (1, 2):
            worker.lend([replace(make_lease(number, ""), trial=number, seed=number)])
        (question,) = collect_questions(worker, [], 1)
    assert question.content == (1, 2)


def test_an_answer_that_is_an_error_is_raised_to_the_asker() -> None:
    with run_worker(ask_twice) as worker:
        (question,) = collect_questions(worker, [make_lease(1, "warm")], 1)
        worker.answer([Answer(number=question.number, error=PolicyInfraError("no weights"))])
        for _ in range(2):  # `ask_twice` does not catch it, so the worker ends with it
            with pytest.raises(PolicyInfraError, match="no weights"):
                collect_questions(worker, [], 1)


def test_a_question_without_an_asker_is_withdrawn() -> None:
    async def ask_in_haste(jobs: LeasedJobs) -> None:
        await jobs.take()
        asking = asyncio.create_task(jobs.ask("slow"))
        await jobs.ask("quick")
        asking.cancel()
        await jobs.take()

    with run_worker(ask_in_haste) as worker:
        asked = {each.content: each.number for each in collect_questions(worker, [make_lease(1, "")], 2)}
        worker.answer([Answer(number=asked["quick"])])
        deadline = time.monotonic() + WAIT_S
        while not (report := worker.exchange([], 0, 0.0)).withdrawn and time.monotonic() < deadline:
            assert report.questions == ()
        assert (report.questions, report.withdrawn) == ((), (asked["slow"],))
        worker.answer([Answer(number=asked["slow"])])  # too late, and harmless
