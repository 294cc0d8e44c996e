"""How fast clean worlds come: resets, calls and forks, against what one would do without gymcp, in the same run.

Prints a table; with --json one object. Every reset is a new process behind a wall of its own, set up and with its tools
known. Baselines: a server of the MCP SDK spawned per episode by the SDK's own stdio client, and a bare interpreter
under bubblewrap.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import mcp
from report_table import Result, all_against, options, show

from gymcp.mcp_servers.native import native_server
from gymcp.mcp_servers.sandbox import Launch, Sandbox, get_sandbox
from gymcp.mcp_servers.session import ToolSession, open_session
from gymcp.mcp_servers.snapshot import fork_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.warm import warmed
from gymcp.types import ToolCall

AT_ONCE = 16
SESSIONS = 64
COPIES = 8
SDK_SERVER = """
from mcp.server import MCPServer
mcp = MCPServer("counter", log_level="ERROR")
count = 0
@mcp.tool()
def add(number: int) -> str:
    global count
    count += number
    return str(count)
mcp.run("stdio")
"""
ECHO = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"


class Counter:
    """The world: one number."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def add(self, number: int) -> str:
        """Add to the count."""
        self.count += number
        return str(self.count)


def main() -> None:
    args = options(__doc__, "a fifth of the repetitions").parse_args()
    sandbox = get_sandbox("bwrap")
    sandbox.check()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "server.py")
        program.write_text(SDK_SERVER)
        sdk = mcp.StdioServerParameters(command=sys.executable, args=[str(program)])
        results = asyncio.run(_measure(sandbox, sdk, 1 if args.quick else 5))
    show("resets", results, as_json=args.json)


async def _measure(sandbox: Sandbox, sdk: mcp.StdioServerParameters, scale: int) -> list[Result]:
    started = native_server("counter", Counter)
    forked = native_server("counter", Counter, start="fork")
    async with warmed(sandbox) as warm:
        async with open_session(forked, warm, initial_state={}, seed=0):
            pass  # the template is there
        resets = {
            "SDK server per episode": await _rate(lambda: _sdk_reset(sdk), 8 * scale),
            "bare interpreter in bwrap": await _rate(lambda: _bare_start(sandbox), 40 * scale),
            "native, started": await _rate(lambda: _reset(started, sandbox), 40 * scale),
            "native, forked": await _rate(lambda: _reset(forked, warm), 80 * scale),
        }
        calls = {
            "SDK server, SDK client": await _calls(lambda: _sdk_caller(sdk), 5 * scale),
            "bare pipes": await _calls(_pipe_caller, 40 * scale),
            "native, recorded and digested": await _calls(lambda: _caller(forked, warm), 20 * scale),
        }
        forks = await _forks(forked, warm, 4 * scale)
    return [
        *all_against(resets, f"resets/s @{AT_ONCE}", "SDK server per episode"),
        *all_against(calls, f"calls/s @{SESSIONS}", "SDK server, SDK client"),
        Result(metric=f"fork({COPIES}) of a live server p50", value=statistics.median(forks), unit="ms"),
        Result(metric=f"fork({COPIES}) of a live server, fastest", value=min(forks), unit="ms"),
    ]


async def _rate(act: Callable[[], Awaitable[None]], count: int) -> float:
    """How often a second `AT_ONCE` workers do it."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await act()

    begin = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - begin)


async def _reset(spec: ServerSpec, sandbox: Sandbox) -> None:
    async with open_session(spec, sandbox, initial_state={"count": 1}, seed=0):
        pass


async def _bare_start(sandbox: Sandbox) -> None:
    async with sandbox.start(Launch(argv=("python3", "-s", "-S", "-c", "print(1)"))) as process:
        await process.stdout.readline()


async def _sdk_reset(server: mcp.StdioServerParameters) -> None:
    async with mcp.Client(server) as client:
        await client.list_tools()


Call = Callable[[], Awaitable[object]]


async def _calls(open_caller: Callable[[], contextlib.AbstractAsyncContextManager[Call]], each: int) -> float:
    """Calls a second over `SESSIONS` servers that are all up before the clock starts."""
    up = asyncio.Barrier(SESSIONS + 1)

    async def work() -> None:
        async with open_caller() as call:
            await call()
            await up.wait()
            for _ in range(each):
                await call()
            await up.wait()

    workers = [asyncio.create_task(work()) for _ in range(SESSIONS)]
    await up.wait()
    begin = time.perf_counter()
    await up.wait()
    spent = time.perf_counter() - begin
    await asyncio.gather(*workers)
    return SESSIONS * each / spent


@contextlib.asynccontextmanager
async def _caller(spec: ServerSpec, sandbox: Sandbox) -> AsyncIterator[Call]:
    async with open_session(spec, sandbox, initial_state={}, seed=0) as session:
        yield lambda: _recorded(session)


async def _recorded(session: ToolSession) -> tuple[str, str]:
    result = await session.call(ToolCall(id="1", name="add", arguments={}), {"number": 1}, timeout_s=60)
    return result.content, session.world_key


@contextlib.asynccontextmanager
async def _sdk_caller(server: mcp.StdioServerParameters) -> AsyncIterator[Call]:
    async with mcp.Client(server) as client:
        yield lambda: client.call_tool("add", {"number": 1})


@contextlib.asynccontextmanager
async def _pipe_caller() -> AsyncIterator[Call]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", ECHO, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}}).encode() + b"\n"

    async def call() -> object:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        return json.loads(await process.stdout.readline())

    yield call
    process.stdin.close()
    await process.wait()


async def _forks(spec: ServerSpec, sandbox: Sandbox, count: int) -> list[float]:
    """Milliseconds until `COPIES` copies stand, each in a cell of its own."""
    times = []
    async with open_session(spec, sandbox, initial_state={}, seed=0) as session:
        for _ in range(count):
            begin = time.perf_counter()
            copies = await fork_session(session, COPIES)
            times.append((time.perf_counter() - begin) * 1e3)
            for copy in copies:
                await copy.discard()
    return times


if __name__ == "__main__":
    main()
