"""Members of the pool are prestarted, handed out once, ended after use, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from code_runner import CodeRunner

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.forkserver.warm_pool import WarmPool
from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox, open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import ServerSpec


class Things:
    """Numbered things, with a record of those that are open."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.closed: set[int] = set()
        self.numbers = itertools.count(1)
        self.changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def start(self) -> AsyncIterator[int]:
        number = next(self.numbers)
        self.open.add(number)
        async with self.changed:
            self.changed.notify_all()
        try:
            yield number
        finally:
            self.open.remove(number)
            self.closed.add(number)
            async with self.changed:
                self.changed.notify_all()

    async def until_open(self, numbers: set[int]) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.open == numbers)

    async def until_closed(self, number: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: number in self.closed)


def test_each_member_is_handed_out_once_and_the_next_is_prestarted() -> None:
    async def use() -> None:
        things = Things()
        async with WarmPool(things.start, size=2) as pool:
            async with pool.take() as first, pool.take() as second, pool.take() as third:
                await things.until_open({1, 2, 3, 4, 5})
                assert (first, second, third) == (1, 2, 3)
            assert things.open == {4, 5}
            async with pool.take() as fourth:
                assert fourth == 4
        assert things.open == set()

    asyncio.run(use())


def test_fewer_members_wait_than_have_been_taken() -> None:
    """A run of one episode starts no server that nobody uses."""

    async def use() -> list[int]:
        things, waiting = Things(), []
        async with WarmPool(things.start, size=3) as pool:
            for _ in range(5):
                async with pool.take():
                    await pool.wait_until_full()
                    waiting.append(len(things.open) - 1)
        return waiting

    assert asyncio.run(use()) == [0, 1, 2, 3, 3]


def test_a_member_that_waited_too_long_or_died_is_not_handed_out() -> None:
    async def use() -> None:
        things = Things()
        dead = {4}
        async with WarmPool(things.start, size=2, alive=lambda number: number not in dead) as pool:
            async with pool.take(), pool.take(), pool.take():
                await things.until_open({1, 2, 3, 4, 5})
            async with pool.take() as taken:
                assert taken == 5
        async with WarmPool(things.start, size=1, ttl_s=0.0) as pool, pool.take(), pool.take() as old:
            await things.until_closed(old + 1)
            async with pool.take() as fresh:
                assert fresh > old + 1

    asyncio.run(use())


def things_exist() -> bool:
    return False


def test_a_failed_start_raises_in_the_task_that_takes_the_member() -> None:
    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[int]:
        if not things_exist():
            raise OSError("no")
        yield 0

    async def use() -> None:
        async with WarmPool(broken, size=1) as pool, pool.take():
            pass

    with pytest.raises(OSError, match="no"):
        asyncio.run(use())


def test_episodes_on_prestarted_servers_have_processes_of_their_own(bwrap: Bubblewrap) -> None:
    spec = replace(native_server("code_runner", CodeRunner), warm_pool_size=2)

    async def episodes() -> list[int]:
        pids = []
        async with open_warm_sandbox(bwrap) as warm:
            for number in range(4):
                async with open_session(spec, warm, initial_state={"note": str(number)}, seed=0) as session:
                    assert (await session.state())[1] == {"note": str(number)}
                    pids.append(session.process.pid)
        return pids

    assert len(set(asyncio.run(episodes()))) == 4


def test_after_a_failed_start_there_is_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    started = 0

    @contextlib.asynccontextmanager
    async def start() -> AsyncIterator[int]:
        nonlocal started
        started += 1
        if started > 1:
            raise OSError("no memory")
        yield started

    async def use() -> tuple[int, list[str]]:
        async with WarmPool(start, size=4) as pool:
            async with pool.take():
                await pool.wait_until_full()
            errors = []
            for _ in range(3):
                try:
                    async with pool.take():
                        pass
                except OSError as error:
                    errors.append(str(error))
            return started, errors

    count, errors = asyncio.run(use())
    assert errors == ["no memory"] * 3  # each request gets the error
    assert count <= 1 + 3 + max(2, len(os.sched_getaffinity(0)))
    assert "no server is started ahead for 1 s, because one failed: no memory" in caplog.text


def test_only_a_few_start_at_a_time_and_none_without_room() -> None:
    async def use() -> None:
        things, gate, room = Things(), asyncio.Event(), [False]
        gate.set()
        starting = 0
        most = 0

        @contextlib.asynccontextmanager
        async def slow() -> AsyncIterator[int]:
            nonlocal starting, most
            starting += 1
            most = max(most, starting)
            await gate.wait()
            starting -= 1
            async with things.start() as number:
                yield number

        async with WarmPool(slow, size=9, has_room=lambda: room[0]) as pool:
            takers = [asyncio.create_task(_hold(pool)) for _ in range(9)]
            await things.until_open(set(range(1, 10)))
            await pool.wait_until_full()
            assert len(things.open) == 9  # none without room
            gate.clear()
            room[0] = True
            takers.append(asyncio.create_task(_hold(pool)))
            await asyncio.sleep(0)
            gate.set()
            await pool.wait_until_full()
            await things.until_open(set(range(1, 20)))  # the ten that were asked for, and nine ahead
            assert most <= 1 + max(2, len(os.sched_getaffinity(0)))
            room[0] = False
            async with pool.take():
                await pool.wait_until_full()
            assert len(things.open) == 18
            for taker in takers:
                taker.cancel()
            await asyncio.gather(*takers, return_exceptions=True)

    asyncio.run(use())


async def _hold(pool: WarmPool[int]) -> None:
    async with pool.take():
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("program", "said"),
    [("import sys; sys.exit('no key was given')", "no key was given"), ("print('Welcome!', flush=True)", "Welcome!")],
)
def test_a_prestarted_server_that_cannot_serve_is_dropped_with_its_reason(
    bwrap: Bubblewrap, caplog: pytest.LogCaptureFixture, program: str, said: str
) -> None:
    spec = ServerSpec(name="bad", argv=("python3", "-c", program), warm_pool_size=2)

    async def episode() -> None:
        async with open_warm_sandbox(bwrap) as warm:
            assert isinstance(warm, WarmSandbox)
            with contextlib.suppress(EnvInfraError):  # the first has nothing started ahead
                async with open_session(spec, warm, initial_state=None, seed=0):
                    pass
            try:
                async with open_session(spec, warm, initial_state=None, seed=0):
                    pass
            finally:
                await warm.wait_until_full()  # the warnings are about members that no request waited for

    with pytest.raises(EnvInfraError, match=r"server 'bad': (start|handshake)"):
        asyncio.run(episode())
    assert said in caplog.text
