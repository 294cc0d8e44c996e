"""Asynchronous building blocks: contexts in tasks of their own, locks by key, and a loop in a background thread."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from gymcp.aio import (
    BackgroundLoop,
    LoopEnded,
    RunnerThread,
    find_deadline,
    hold_open,
    keyed_lock,
    limit_wait,
    run_in_own_task,
    share_deadline,
)


class Recorder:
    """A context that notes the tasks and threads in which it is entered and left."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None] | None] = []
        self.threads: list[str] = []

    def note(self) -> None:
        self.tasks.append(asyncio.current_task())
        self.threads.append(threading.current_thread().name)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        self.note()
        try:
            yield "value"
        finally:
            self.note()


@contextlib.asynccontextmanager
async def fail_to_open() -> AsyncIterator[str]:
    values: dict[str, str] = {}
    yield values["no value"]


def test_a_context_is_entered_and_left_in_one_task_of_its_own() -> None:
    recorder = Recorder()

    async def main() -> None:
        stack = contextlib.AsyncExitStack()
        assert await asyncio.create_task(stack.enter_async_context(run_in_own_task(recorder.open()))) == "value"
        await stack.aclose()
        assert recorder.tasks[0] is recorder.tasks[1] is not asyncio.current_task()

    asyncio.run(main())


def test_an_error_on_entering_reaches_the_caller() -> None:
    async def main() -> None:
        with pytest.raises(KeyError, match="no value"):
            async with run_in_own_task(fail_to_open()):
                pass

    asyncio.run(main())


def test_a_caller_that_is_cancelled_while_entering_leaves_no_task() -> None:
    async def main() -> None:
        recorder, blocked = Recorder(), asyncio.Event()

        @contextlib.asynccontextmanager
        async def block() -> AsyncIterator[None]:
            async with recorder.open():
                blocked.set()
                await asyncio.Event().wait()
                yield

        async def enter() -> None:
            async with run_in_own_task(block()):
                pass

        task = asyncio.create_task(enter())
        await blocked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(recorder.tasks) == 2
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_runner_holds_a_context_open_in_one_task() -> None:
    recorder = Recorder()
    with asyncio.Runner() as runner:
        with hold_open(runner, recorder.open()) as value:
            assert (value, len(recorder.tasks)) == ("value", 1)
        assert recorder.tasks[0] is recorder.tasks[1]
        with pytest.raises(KeyError, match="no value"), hold_open(runner, fail_to_open()):
            pass


def test_a_lock_belongs_to_its_name_and_to_the_loop() -> None:
    async def locks() -> tuple[asyncio.Lock, asyncio.Lock, asyncio.Lock]:
        return keyed_lock("one"), keyed_lock("one"), keyed_lock("two")

    first, again, other = asyncio.run(locks())
    assert first is again
    assert first is not other
    assert asyncio.run(locks())[0] is not first


def test_a_background_loop_keeps_its_resource_until_it_ends() -> None:
    recorder = Recorder()
    background = BackgroundLoop("test-loop", recorder.open())
    assert (background.resource, background.is_here) == ("value", True)
    called = threading.Event()
    background.call(called.set)
    assert called.wait(60)
    background.end()
    background.end()
    assert recorder.threads == ["test-loop", "test-loop"]
    assert "test-loop" not in [thread.name for thread in threading.enumerate()]


def test_a_background_loop_whose_resource_cannot_be_opened_says_why_and_ends() -> None:
    background = BackgroundLoop("test-loop", fail_to_open())
    with pytest.raises(KeyError, match="no value"):
        _ = background.resource
    background.end()


def test_a_background_loop_whose_resource_cannot_be_left_says_why_when_it_ends() -> None:
    @contextlib.asynccontextmanager
    async def fail_to_leave() -> AsyncIterator[str]:
        yield "value"
        raise KeyError("left badly")

    background = BackgroundLoop("test-loop", fail_to_leave())
    assert background.resource == "value"
    with pytest.raises(KeyError, match="left badly"):
        background.end()


def test_a_loop_in_a_thread_answers_until_it_has_ended() -> None:
    stop = asyncio.Event()

    @contextlib.contextmanager
    def open_value(runner: asyncio.Runner) -> Iterator[int]:
        yield runner.run(asyncio.sleep(0, 6))

    async def live() -> None:
        await stop.wait()

    async def answer() -> int:
        return 7

    thread = RunnerThread("test-loop", open_value, live)
    assert (thread.wait_until_open(60), thread.ask(answer)) == (6, 7)
    thread.call(stop.set)
    thread.join(60)
    with pytest.raises(LoopEnded):
        thread.ask(answer)


def test_a_question_is_answered_with_the_error_that_ends_the_loop() -> None:
    @contextlib.contextmanager
    def open_nothing(runner: asyncio.Runner) -> Iterator[None]:
        yield

    async def live() -> None:
        await stop.wait()
        raise ValueError("the play broke")

    async def stop_and_wait() -> None:
        stop.set()
        await asyncio.Event().wait()

    stop = asyncio.Event()
    thread = RunnerThread("test-loop", open_nothing, live)
    with pytest.raises(ValueError, match="the play broke"):
        thread.ask(stop_and_wait)


def test_the_first_deadline_around_counts_also_in_tasks_that_are_started_inside() -> None:
    async def find() -> float:
        return find_deadline()

    async def look() -> list[float | None]:
        async with limit_wait(None) as endless:
            found: list[float | None] = [endless.when(), find_deadline()]
        async with limit_wait(100.0) as outer, limit_wait(1_000.0):
            found.append(await asyncio.create_task(find()))
            expected = outer.when()
        with share_deadline(7.0), share_deadline(8.0):
            found.append(find_deadline())
        return [*found, find_deadline(), expected]

    *found, after, expected = asyncio.run(look())
    assert (found, after) == ([None, math.inf, expected, 7.0], math.inf)


def test_a_wait_is_over_at_its_limit() -> None:
    async def wait() -> bool:
        try:
            async with limit_wait(0.0) as scope:
                await asyncio.Event().wait()
        except TimeoutError:
            return scope.expired()
        return False

    assert asyncio.run(wait())
