"""The cost of a flooding server for the episodes beside it: the share of their calls that they lose.

Honest servers are called without a pause on one event loop. Beside them runs, in turns, a server that only computes, or
one that floods until it is lost. Both take one core, so the loss is the share of the loop that the messages take. Let
nothing else run. Exit code 1 if more than a tenth of the calls is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from flood_server import FLOODS
from report_table import Result, options, show

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.types import ToolCall

QUIET, SHARE = "compute", "share"
MAX_LOST = 0.10
"""Share of the honest servers' calls that may be lost."""
HONEST_SERVERS = 4
"""Servers that are called at the same time, which leaves the loop no pause."""
WARM_UP_S = 0.5
"""Seconds that a flood runs before the calls beside it are counted."""


class Adder:
    """An honest server, whose state is one number."""

    def __init__(self, total: int = 0) -> None:
        self.total = total

    def add(self, number: int) -> int:
        """Add a number."""
        self.total += number
        return self.total


def main() -> None:
    parser = options(__doc__, "3 s of each flood instead of three times 10")
    parser.add_argument("--kind", action="append", choices=[kind for kind in FLOODS if kind != QUIET])
    parser.add_argument("--sandbox", default="bwrap")
    args = parser.parse_args()
    sandbox = get_sandbox(args.sandbox)
    sandbox.check()
    kinds = args.kind or [kind for kind in FLOODS if kind != QUIET]
    results = asyncio.run(_measure(sandbox, kinds, *((1, 3.0) if args.quick else (3, 10.0))))
    show("flood", results, as_json=args.json)
    worst = max((result for result in results if result.unit == SHARE), key=lambda result: result.value)
    if worst.value > MAX_LOST:
        print(f"flood: {worst.metric}: {worst.value:.3f}; at most {MAX_LOST} is allowed", file=sys.stderr)
        if not args.quick:
            raise SystemExit(1)


async def _measure(sandbox: Sandbox, kinds: Sequence[str], rounds: int, for_s: float) -> list[Result]:
    results: list[Result] = []
    async with open_warm_sandbox(sandbox) as warm, contextlib.AsyncExitStack() as stack:
        spec = native_server("adder", Adder, start="fork")
        honest = [
            await stack.enter_async_context(open_session(spec, warm, initial_state={}, seed=number))
            for number in range(HONEST_SERVERS)
        ]
        for kind in kinds:
            quiet, beside, longest_ms = 0.0, 0.0, 0.0
            for _ in range(rounds):  # in turns, since the load of the machine changes
                quiet += (await _rate(honest, warm, QUIET, for_s))[0] / rounds
                rate, longest = await _rate(honest, warm, kind, for_s)
                beside += rate / rounds
                longest_ms = max(longest_ms, longest)
            flood = kind.replace("_", " ")
            results += [
                Result(
                    metric=f"calls lost beside {flood}",
                    value=1 - beside / quiet,
                    unit=SHARE,
                    baseline="calls/s beside a server that says nothing",
                    baseline_value=quiet,
                    ratio=beside / quiet,
                ),
                Result(metric=f"longest call beside {flood}", value=longest_ms, unit="ms"),
            ]
    return results


async def _rate(honest: Sequence[ToolSession], sandbox: Sandbox, kind: str, for_s: float) -> tuple[float, float]:
    """(calls a second of the honest servers together, the longest in ms) while another one floods."""
    flooding = asyncio.create_task(_flood(sandbox, kind, WARM_UP_S + for_s))
    await asyncio.sleep(WARM_UP_S)
    began = time.perf_counter()
    counts = await asyncio.gather(*(_calls(session, began + for_s) for session in honest))
    took = time.perf_counter() - began
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)
    return sum(count for count, _ in counts) / took, 1e3 * max(longest for _, longest in counts)


async def _calls(session: ToolSession, until: float) -> tuple[int, float]:
    count, longest = 0, 0.0
    while (began := time.perf_counter()) < until:
        await session.call_tool(ToolCall(id="", name="add"), {"number": 1}, timeout_s=60.0)
        longest = max(longest, time.perf_counter() - began)
        count += 1
    return count, longest


async def _flood(sandbox: Sandbox, kind: str, for_s: float) -> None:
    """Flood in one session until its server is lost."""
    spec = replace(native_server("flood", "flood_server"), state="opaque", wire="legacy")
    with contextlib.suppress(EnvInfraError):
        async with open_session(spec, sandbox, initial_state=None, seed=0) as session:
            while True:
                await session.call_tool(ToolCall(id="", name=kind), {"for_s": for_s}, timeout_s=60.0)


if __name__ == "__main__":
    main()
