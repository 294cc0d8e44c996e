"""Milliseconds of one start: of a server by itself, of one forked from its template, and of one from the warm pool.

A start takes from its first line to the answer of the handshake. Starts come one at a time, on a machine that does
nothing else; the median counts. `before_after.py --only start_cost` compares it with an earlier commit's.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from counter import Counter
from report_table import Result, options, show

from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox, open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import FileState, ServerSpec


def main() -> None:
    args = options(__doc__, "25 starts of each kind instead of 100").parse_args()
    starts = asyncio.run(measure(25 if args.quick else 100))
    results = [Result(metric=way, value=statistics.median(times), unit="ms") for way, times in starts.items()]
    show("start_cost", results, as_json=args.json)


async def measure(starts: int) -> dict[str, list[float]]:
    """Milliseconds of each start, by the way of starting; the first start of each is not counted."""
    started = native_server("counter", Counter, start="exec")
    ways = {
        "started": (started, None),
        "forked": (native_server("counter", Counter, start="fork"), None),
        "spare": (replace(started, warm_pool_size=1), None),
        "started, with files": (replace(started, state=FileState()), {"files": {"a": "1"}}),
    }
    times: dict[str, list[float]] = {}
    async with open_warm_sandbox(get_sandbox("bwrap")) as sandbox:
        for way, (spec, state) in ways.items():
            times[way] = []
            for number in range(starts + 2):  # a pool is empty until two were taken
                if isinstance(sandbox, WarmSandbox):
                    await sandbox.wait_until_full()
                begin = time.perf_counter()
                async with _session(spec, sandbox, state):
                    took = (time.perf_counter() - begin) * 1000
                if number > 1:
                    times[way].append(took)
    return times


def _session(
    spec: ServerSpec, sandbox: Sandbox, state: dict[str, dict[str, str]] | None
) -> AbstractAsyncContextManager[ToolSession]:
    return open_session(spec, sandbox, initial_state=state, seed=0)


if __name__ == "__main__":
    main()
