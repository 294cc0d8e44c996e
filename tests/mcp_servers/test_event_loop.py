"""Deadlines and shares on the loop that all episodes of a process share."""

from __future__ import annotations

import asyncio
import re
import signal
import time

import pytest

from gymcp.errors import ServerLimitExceeded
from gymcp.mcp_servers.loop_share import BURST_S, SHARE, Deadline, LoopShare
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Launch, Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.types import ToolCall, ToolResult

STALL_S = 2.5
CALL_S = 1.5


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


async def stand_still() -> None:
    """Work of another episode that blocks the loop."""
    time.sleep(STALL_S)  # noqa: ASYNC251


@pytest.mark.parametrize("stalls", [1, 3])
def test_a_server_is_not_blamed_for_a_blocked_loop(bwrap: Sandbox, stalls: int) -> None:
    async def call(session: ToolSession) -> ToolResult:
        return await session.call_tool(ToolCall(id="c", name="add"), {"number": 2}, timeout_s=CALL_S)

    async def main() -> str:
        async with open_session(native_server("adder", Adder), bwrap, initial_state={}, seed=0) as session:
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


def test_server_that_does_not_answer_is_exhausted_however_late_the_loop_is(bwrap: Sandbox) -> None:
    async def main() -> None:
        async with open_session(native_server("adder", Adder), bwrap, initial_state={}, seed=0) as session:
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
        with pytest.raises(TimeoutError):
            async with Deadline(0.01):
                await asyncio.Event().wait()

    asyncio.run(main())


def test_a_server_may_use_a_burst_of_loop_time_and_then_a_share() -> None:
    share = LoopShare()
    share.charge(BURST_S / 2)
    assert share.owed_s() == 0.0
    share.charge(BURST_S / 2 + 2 * SHARE)
    assert share.owed_s() == pytest.approx(2.0, abs=0.2)
