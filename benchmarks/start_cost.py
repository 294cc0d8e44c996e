"""What one start costs, in milliseconds: a server started by itself, one forked from its template, and a spare.

From the first line of the start to the answer of the handshake, one start at a time on a machine that does nothing
else; the median. With --against another checkout's Python (its .venv/bin/python), the two take turns, round by round,
and what this one says stands against what the other says.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from report_table import Result, against, options, show

from gymcp.mcp_servers.native import native_server
from gymcp.mcp_servers.opening import open_session
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.session import ToolSession
from gymcp.mcp_servers.spec import FileState, ServerSpec
from gymcp.mcp_servers.warm import WarmSandbox, warmed

ROUNDS = 8
STARTS = 25
UNIT = "ms/start p50"


class Counter:
    """The world: one number."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def add(self, number: int) -> str:
        """Add to the count."""
        self.count += number
        return str(self.count)


def main() -> None:
    parser = options(__doc__, "2 rounds of 5 starts")
    parser.add_argument("--against", metavar="PYTHON", help="Compare with the checkout that this interpreter imports.")
    parser.add_argument("--round", type=int, help="Measure one round of so many starts and print it (used by itself).")
    args = parser.parse_args()
    if args.round:
        print(json.dumps(asyncio.run(one_round(args.round))))
        return
    rounds, starts = (2, 5) if args.quick else (ROUNDS, STARTS)
    pythons = {"this checkout": sys.executable} | ({"the other": args.against} if args.against else {})
    found: dict[str, dict[str, list[float]]] = {name: {} for name in pythons}
    for _ in range(rounds):
        for name, python in pythons.items():
            said = subprocess.run(
                [python, __file__, "--round", str(starts)], check=True, stdout=subprocess.PIPE, text=True
            ).stdout
            for way, times in json.loads(said).items():
                found[name].setdefault(way, []).extend(times)
    show("start_cost", results(found), as_json=args.json)


def results(found: dict[str, dict[str, list[float]]]) -> list[Result]:
    made = []
    for way, times in found["this checkout"].items():
        value = statistics.median(times)
        if "the other" in found:
            other = statistics.median(found["the other"][way])
            made.append(against(way, value, UNIT, Result(metric=f"{way}, the other", value=other, unit=UNIT)))
        else:
            made.append(Result(metric=way, value=value, unit=UNIT))
    return made


async def one_round(starts: int) -> dict[str, list[float]]:
    """Way -> milliseconds of each start, after one that is not counted."""
    started = native_server("counter", Counter, start="exec")
    ways = {
        "started": (started, None),
        "forked": (native_server("counter", Counter, start="fork"), None),
        "spare": (replace(started, spares=1), None),
        "started, with files": (replace(started, state=FileState()), {"files": {"a": "1"}}),
    }
    found: dict[str, list[float]] = {}
    async with warmed(get_sandbox("bwrap")) as sandbox:
        for way, (spec, state) in ways.items():
            found[way] = []
            for number in range(starts + 1):
                if isinstance(sandbox, WarmSandbox):
                    await sandbox.filled()
                begin = time.perf_counter()
                async with _session(spec, sandbox, state):
                    took = (time.perf_counter() - begin) * 1000
                if number:
                    found[way].append(took)
    return found


def _session(
    spec: ServerSpec, sandbox: Sandbox, state: dict[str, dict[str, str]] | None
) -> AbstractAsyncContextManager[ToolSession]:
    return open_session(spec, sandbox, initial_state=state, seed=0)


if __name__ == "__main__":
    main()
