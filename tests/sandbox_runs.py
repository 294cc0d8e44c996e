"""Python code run to its end in a sandbox, and sandboxes by name, also those that hold limits without a cgroup."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from equipment import usable

from gymcp.mcp_servers.sandbox import Launch, Sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.unconfined import Unconfined

TIMEOUT_S = 120.0
WITHOUT_CGROUP = {"bwrap-watchdog": Bubblewrap, "none-watchdog": Unconfined}
"""Sandboxes whose limits are held by the watchdog."""

DAEMON = """
import os, signal
held = os.open("/workspace/alive", os.O_WRONLY)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(held, b"x")
        os.write(1, b"ready\\n")
        signal.pause()
    os._exit(0)
signal.pause()
"""
"""Holds the named pipe open in a grandchild of its own session, whose parent is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A server that ran to its end, by itself or not."""

    out: str
    err: str
    status: int
    limit: str | None


def python(code: str, **options: Any) -> Launch:
    """Python code as a launch, without packages."""
    return Launch(argv=("python3", "-I", "-S", "-c", code), **options)


def run_to_end(sandbox: Sandbox, code: str, launch: Launch | None = None) -> Ended:
    """Run Python code in the sandbox, without packages."""
    with_code = replace(launch or Launch(argv=()), argv=("python3", "-I", "-S", "-c", code))

    async def run() -> Ended:
        async with asyncio.timeout(TIMEOUT_S), sandbox.start(with_code) as process:
            out = await process.stdout.read()
            status = await process.wait()
            return Ended(out=out.decode(), err=process.stderr_tail(), status=status, limit=process.exceeded_limit())

    return asyncio.run(run())


def sandbox_of(name: str) -> Sandbox:
    """The sandbox of that name; without it the test is skipped, or fails."""
    sandbox = usable(name.removesuffix("-watchdog"))
    return WITHOUT_CGROUP[name](use_cgroup=False) if name in WITHOUT_CGROUP else sandbox
