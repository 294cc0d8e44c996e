"""One run of a server's program, from its standard input to its output: how suites use upstream's code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gymcp.errors import UsageError
from gymcp.mcp_servers.sandbox import Launch, Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.service_launch import add_services

RUN_TIMEOUT_S = 900.0
"""Seconds that a run may take, on a machine that does much else at the same time."""


def run_once(server: ServerSpec, sandbox: Sandbox, text: str, *words: str) -> str:
    """The output of the server for `text` as its standard input, with `words` added to its command line.

    Raises UsageError if it fails, or does not end in time.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:  # the caller may be inside an event loop of its own
        try:
            return thread.submit(asyncio.run, _run(server, sandbox, text, words)).result()
        except TimeoutError as error:  # an OSError, which would pass for one of the cache's
            why = f"was not done with what it was given within {RUN_TIMEOUT_S:g} s; run it again"
            raise UsageError(f"server '{server.name}': {why}") from error


async def _run(server: ServerSpec, sandbox: Sandbox, text: str, words: Sequence[str]) -> str:
    plain = Launch(argv=(*server.argv, *words), env=server.env, mounts=server.mounts, limits=server.limits)
    launch = add_services(server, plain)
    async with asyncio.timeout(RUN_TIMEOUT_S), sandbox.start(launch) as process:
        async with asyncio.TaskGroup() as group:
            group.create_task(_feed(process.stdin, text.encode()))
            output = group.create_task(process.stdout.read())
        status = await process.wait()
        if status != 0:
            why = process.exceeded_limit() or process.stderr_tail().strip()[-500:]
            raise UsageError(f"server '{server.name}': ended with status {status} after what it was given: {why}")
    return output.result().decode()


async def _feed(stdin: asyncio.StreamWriter, content: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # it ended early, and its status says why
        stdin.write(content)
        await stdin.drain()
        stdin.close()
