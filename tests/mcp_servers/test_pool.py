"""Spares are started ahead, handed out once, ended after, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from cell_program import Cell

from gymcp.mcp_servers.native import native_server
from gymcp.mcp_servers.pool import WarmPool
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.session import open_session
from gymcp.mcp_servers.warm import warmed


class Things:
    """Numbered; knows which are open."""

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


def test_each_is_handed_out_once_and_the_next_is_ready_before() -> None:
    async def use() -> None:
        things = Things()
        async with WarmPool(things.start, spares=2) as pool:
            async with pool.take() as first, pool.take() as second:
                await things.until_open({1, 2, 3, 4})
                assert (first, second) == (1, 2)
            assert things.open == {3, 4}
            async with pool.take() as third:
                assert third == 3
        assert things.open == set()

    asyncio.run(use())


def test_spare_that_waited_too_long_or_died_is_not_handed_out() -> None:
    async def use() -> None:
        things = Things()
        dead = {2}
        async with WarmPool(things.start, spares=2, alive=lambda number: number not in dead) as pool:
            async with pool.take():
                await things.until_open({1, 2, 3})
            async with pool.take() as taken:
                assert taken == 3
        async with WarmPool(things.start, spares=1, ttl_s=0.0) as pool, pool.take() as old:
            await things.until_closed(old + 1)
            async with pool.take() as fresh:
                assert fresh > old + 1

    asyncio.run(use())


def things_exist() -> bool:
    return False


def test_failure_to_start_reaches_who_asked() -> None:
    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[int]:
        if not things_exist():
            raise OSError("no")
        yield 0

    async def use() -> None:
        async with WarmPool(broken, spares=1) as pool, pool.take():
            pass

    with pytest.raises(OSError, match="no"):
        asyncio.run(use())


def test_episodes_on_spares_have_processes_of_their_own(bwrap: Bubblewrap) -> None:
    spec = replace(native_server("cell", Cell), spares=2)

    async def episodes() -> list[int]:
        pids = []
        async with warmed(bwrap) as warm:
            for number in range(4):
                async with open_session(spec, warm, initial_state={"note": str(number)}, seed=0) as session:
                    assert (await session.state())[1] == {"note": str(number)}
                    pids.append(session.process.pid)
        return pids

    assert len(set(asyncio.run(episodes()))) == 4
