"""Why a server ended is known as soon as its end is: else what an agent used up would be called the harness's fault."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from dataclasses import replace

import pytest
from equipment import require_cgroup
from faults import environment

from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sandbox.pidfd import ProcessEnd
from gymcp.mcp_servers.sandbox.process import HostProcess
from gymcp.mcp_servers.sessions.connect import open_session

FAULT = "uses up its memory"


def end_of(process: object) -> ProcessEnd:
    found = process._process_1 if isinstance(process, ForkedProcess) else process._outermost  # type: ignore[attr-defined]
    assert isinstance(found, ProcessEnd)
    return found


@pytest.mark.parametrize("forked", [True, False])
def test_a_waiter_learns_the_limit_of_an_end_seen_just_before(forked: bool, require: Callable[[str], None]) -> None:
    """The server's pipe and its end are seen in the same turn of the loop, in any order."""
    require("bwrap")
    require_cgroup()  # the watchdog stands still with the loop
    env = environment("forked", [FAULT])
    server = env.servers[0] if forked else replace(env.servers[0], fork=None)
    add = b'{"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "add", "arguments": {"note": ""}}}\n'

    async def main() -> str | None:
        state = {**env.suite.tasks[0].initial_state, "at": 1}
        async with (
            open_warm_sandbox(get_sandbox("bwrap")) as warm,
            open_session(server, warm, initial_state=state, seed=0) as session,
        ):
            process = session.process
            assert isinstance(process, ForkedProcess if forked else HostProcess)
            end = end_of(process)
            process.stdin.write(add)
            ended, _, _ = select.select([end._fd], [], [], 60)  # the loop stands still: it has seen nothing yet
            assert ended
            end._on_end()  # the loop calls this first
            if isinstance(process, ForkedProcess):
                process.set_status(137)
            await process.wait()
            return process.exceeded_limit()

    assert asyncio.run(main()) == "memory: the process tree used more than 96 MB"
