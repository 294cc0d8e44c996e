"""Deadlines and shares on the loop that all episodes of a process share."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import AsyncIterator
from typing import Literal

import pytest

from gymcp.errors import EnvInfraError, ServerLimitExceeded
from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.loop_share import BURST_S, LATE_S, MAX_CLOCK_FACTOR, SHARE, Deadline, LateLoop, LoopShare
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Launch, Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.types import ToolCall, ToolResult

STALL_S = 2.5
CALL_S = 1.5
Start = Literal["exec", "fork"]
on_each_start = pytest.mark.parametrize("start", ["exec", "fork"])


class Adder:
    def __init__(self, total: int = 0) -> None:
        self.total = total

    def add(self, number: int) -> int:
        """Add a number."""
        self.total += number
        return self.total

    def hang(self) -> int:
        """Never answers, and cannot be interrupted."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        signal.sigwait([signal.SIGUSR2])
        return 0


@contextlib.asynccontextmanager
async def open_adder(sandbox: Sandbox, start: Start) -> AsyncIterator[ToolSession]:
    spec = native_server("adder", Adder, start=start)
    async with open_warm_sandbox(sandbox) as warm, open_session(spec, warm, initial_state={}, seed=0) as session:
        assert isinstance(session.process, ForkedProcess) is (start == "fork")
        yield session


async def stand_still() -> None:
    """Work of another episode that blocks the loop."""
    time.sleep(STALL_S)  # noqa: ASYNC251


@on_each_start
@pytest.mark.parametrize("stalls", [1, 3])
def test_a_server_is_not_blamed_for_a_blocked_loop(bwrap: Sandbox, start: Start, stalls: int) -> None:
    async def call(session: ToolSession) -> ToolResult:
        return await session.call_tool(ToolCall(id="c", name="add"), {"number": 2}, timeout_s=CALL_S)

    async def main() -> str:
        async with open_adder(bwrap, start) as session:
            calling = asyncio.create_task(call(session))
            for _ in range(stalls):
                await stand_still()
                await asyncio.sleep(0)
            return (await calling).content

    assert asyncio.run(main()) == "2"


def test_no_process_is_left_behind_because_the_loop_was_late(
    bwrap: Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gymcp.mcp_servers.sandbox.process_ending._KILL_TIMEOUT_S", 0.3)

    def stall(turns: int) -> None:
        time.sleep(0.5)
        if turns > 1:
            asyncio.get_running_loop().call_soon(stall, turns - 1)

    async def main() -> None:
        async with bwrap.start(Launch(argv=("sleep", "600"))):
            asyncio.get_running_loop().call_soon(stall, 4)  # also in the turn in which the process is killed

    asyncio.run(main())
    assert caplog.messages == []


@on_each_start
def test_a_loop_that_is_late_all_the_time_is_no_servers_fault(
    bwrap: Sandbox, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    """Each turn of the loop takes `MAX_CLOCK_FACTOR` times the limit."""
    monkeypatch.setattr("gymcp.mcp_servers.sessions.session.PING_TIMEOUT_S", 0.1)
    limit_s = 0.02
    until = time.monotonic() + 60

    def stall() -> None:
        time.sleep(max(2 * LATE_S, MAX_CLOCK_FACTOR * limit_s))
        if time.monotonic() < until:
            asyncio.get_running_loop().call_soon(stall)

    async def main() -> str:
        nonlocal until
        async with open_adder(bwrap, start) as session:
            asyncio.get_running_loop().call_soon(stall)
            with pytest.raises(EnvInfraError) as caught:
                await session.call_tool(ToolCall(id="c", name="hang"), {}, timeout_s=limit_s)
            until = 0.0
            assert type(caught.value) is EnvInfraError
            return str(caught.value)

    late = f"server 'adder': tool 'hang': the harness's event loop was late for {MAX_CLOCK_FACTOR} times the limit"
    assert asyncio.run(main()).startswith(late)


@on_each_start
def test_server_that_does_not_answer_is_exhausted_however_late_the_loop_is(bwrap: Sandbox, start: Start) -> None:
    async def main() -> None:
        async with open_adder(bwrap, start) as session:
            calling = asyncio.create_task(session.call_tool(ToolCall(id="c", name="hang"), {}, timeout_s=CALL_S))
            await asyncio.sleep(0)
            await stand_still()
            with pytest.raises(ServerLimitExceeded, match=re.escape(f"did not end within {CALL_S:g} s")):
                await calling

    asyncio.run(main())


def test_states_of_an_episode_are_bounded_together(bwrap: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymcp.mcp_servers.sessions.state_trackers.MAX_STATES_CHARS", 100)

    async def main() -> None:
        async with open_session(native_server("adder", Adder), bwrap, initial_state={}, seed=0) as session:
            for number in range(20):
                await session.call_tool(ToolCall(id="c", name="add"), {"number": number}, timeout_s=30)

    with pytest.raises(ServerLimitExceeded, match="its states have more than 100 characters together"):
        asyncio.run(main())


def test_deadline_counts_punctual_time_only() -> None:
    async def main() -> None:
        ready = asyncio.Event()
        async with Deadline(CALL_S):
            await stand_still()
            asyncio.get_running_loop().call_later(CALL_S / 4, ready.set)
            await ready.wait()
        with pytest.raises(TimeoutError) as caught:
            async with Deadline(0.01):
                await asyncio.Event().wait()
        assert not isinstance(caught.value, LateLoop)
        stalling = asyncio.create_task(stand_still())
        with pytest.raises(LateLoop):
            async with Deadline(CALL_S / MAX_CLOCK_FACTOR):
                await asyncio.Event().wait()
        await stalling

    asyncio.run(main())


def test_a_server_may_use_a_burst_of_loop_time_and_then_a_share() -> None:
    share = LoopShare()
    share.charge(BURST_S / 2)
    assert share.owed_s() == 0.0
    share.charge(BURST_S / 2 + 2 * SHARE)
    assert share.owed_s() == pytest.approx(2.0, abs=0.2)
