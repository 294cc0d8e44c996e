"""The budget of the event loop's time that a server has, counted on clocks that the tests set."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import cast

import pytest

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers import loop_share
from gymcp.mcp_servers.loop_share import (
    BURST_S,
    MIN_PAUSE_S,
    SHARE,
    START_S,
    LoopShare,
    charge_steps,
    charge_thread,
    resume_share,
)
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Launch, Sandbox, SandboxProcess
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import ServerSpec


class Clock:
    """Processor time and the time of day, which pass only when a test says so."""

    def __init__(self) -> None:
        self.processor_s = 0.0
        self.day_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.day_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(loop_share, "thread_time", lambda: clock.processor_s)
    monkeypatch.setattr(loop_share, "monotonic", lambda: clock.day_s)
    return clock


@pytest.fixture
def no_share_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_share, "_kept", OrderedDict())


def test_work_is_charged_and_what_others_do_meanwhile_is_not(clock: Clock) -> None:
    share = LoopShare(burst_s=0.0)

    async def work() -> str:
        clock.processor_s += 1
        with share.charge_elapsed():  # counts once, though it is inside
            clock.processor_s += 1
        await asyncio.sleep(0)
        clock.processor_s += 1
        return "done"

    async def other() -> None:
        clock.processor_s += 100

    async def main() -> None:
        done, _ = await asyncio.gather(charge_steps(share, work()), other())
        assert done == "done"

    asyncio.run(main())
    assert share.owed_s() == pytest.approx(3 / SHARE)


def test_charged_work_sees_its_cancellation_and_its_errors(clock: Clock) -> None:
    share, seen = LoopShare(), list[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise ValueError("after the end") from None

    async def charge_work() -> None:
        await charge_steps(share, work())

    async def main() -> None:
        task = asyncio.create_task(charge_work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(ValueError, match="after the end"):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]


def test_work_in_a_thread_is_charged(clock: Clock) -> None:
    share = LoopShare(burst_s=0.0)

    def work(seconds: float) -> str:
        clock.processor_s += seconds
        return "done"

    assert asyncio.run(charge_thread(share, work, 2.0)) == "done"
    assert share.owed_s() == pytest.approx(2 / SHARE)


def test_a_server_over_its_budget_waits_long_enough_for_the_wait_to_be_cheap(clock: Clock) -> None:
    share = LoopShare()
    share.charge(BURST_S)
    assert share.owed_s() == 0.0
    share.charge(1e-6)
    assert share.owed_s() == MIN_PAUSE_S


def test_a_lost_session_takes_no_second_burst(
    clock: Clock, no_share_kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "sleep", clock.sleep)

    async def main() -> None:
        async with resume_share("episode") as share:
            share.charge(BURST_S + 1.0)
        async with resume_share("another episode") as other:
            assert other.is_full
        assert clock.day_s == 0.0
        async with resume_share("episode") as again:
            assert again is share
        assert clock.day_s == pytest.approx(1 / SHARE)
        clock.day_s += BURST_S / SHARE
        async with resume_share("episode") as later:
            assert later.is_full

    asyncio.run(main())


GARBAGE = ServerSpec(name="broken", argv=("sh", "-c", "echo garbage; cat"))
FLOOD = replace(native_server("flood", "flood_server"), state="opaque", wire="legacy")
ENDLESS_PAGES = replace(FLOOD, env={**FLOOD.env, "FLOOD_LIST": "endless_pages"})


async def open_once(spec: ServerSpec, sandbox: Sandbox) -> None:
    with contextlib.suppress(EnvInfraError):
        async with open_session(spec, sandbox, initial_state=None, seed=0):
            pass


@pytest.mark.parametrize("spec", [GARBAGE, ENDLESS_PAGES], ids=["garbage", "endless pages"])
def test_a_lost_session_pays_for_its_start_and_for_what_it_made_us_ask(
    spec: ServerSpec, bwrap: Sandbox, clock: Clock, no_share_kept: None
) -> None:
    asyncio.run(open_once(spec, bwrap))
    (share,) = loop_share._kept.values()
    share.charge(BURST_S - START_S)
    assert share.owed_s() > 0


def test_a_session_that_ends_well_costs_nothing(bwrap: Sandbox, clock: Clock, no_share_kept: None) -> None:
    asyncio.run(open_once(FLOOD, bwrap))
    assert not loop_share._kept


@dataclass(frozen=True)
class CostlyEnd:
    """A sandbox whose processes take a second of the loop's time to end."""

    inner: Sandbox
    clock: Clock

    @contextlib.asynccontextmanager
    async def start(self, launch: Launch) -> AsyncIterator[SandboxProcess]:
        async with self.inner.start(launch) as process:
            try:
                yield process
            finally:
                self.clock.processor_s += 1.0


def test_a_server_that_breaks_the_protocol_pays_for_its_start_before_the_next(
    bwrap: Sandbox, clock: Clock, no_share_kept: None
) -> None:
    async def start(seed: int) -> None:
        async with open_session(GARBAGE, cast(Sandbox, CostlyEnd(bwrap, clock)), initial_state=None, seed=seed):
            pass

    async def main() -> None:
        with pytest.raises(EnvInfraError, match="not a JSON-RPC message"):
            await start(0)
        with pytest.raises(EnvInfraError, match="not a JSON-RPC message"):
            await start(1)  # another episode, which owes nothing
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):  # the first one owes for ever on a clock that stands still
                await start(0)

    asyncio.run(main())
