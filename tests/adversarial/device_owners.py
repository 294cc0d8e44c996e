"""A harness on whose machine the device nodes belong to a given user: it says what servers could do to them.

Run as a script, in a mount namespace in which nothing it does reaches the machine: `test_devices.py`. It prints
one JSON object, path -> what was achieved there and what the modes of the nodes are then, or how it was refused.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

from captive import Captive

from gymcp.errors import GymcpError
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.types import ToolCall

NODES = ("null", "zero", "full", "random", "urandom", "tty")
CHANGE = f"out = [name for name in {NODES!r} if 'WORKED' in attempt(lambda: os.chmod('/dev/' + name, 0o600))]"
STARTS: tuple[Literal["exec", "fork"], ...] = ("exec", "fork")


async def change_modes(start: Literal["exec", "fork"]) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        try:
            sandbox = await stack.enter_async_context(open_warm_sandbox(get_sandbox("bwrap")))
            spec = native_server("captive", Captive, start=start)
            session = await stack.enter_async_context(open_session(spec, sandbox, initial_state=None, seed=0))
            said = await session.call_tool(ToolCall(id="", name="run", arguments={}), {"code": CHANGE}, timeout_s=60)
        except GymcpError as error:
            return {"refused": f"{type(error).__name__}: {error}"}
    modes = {oct(os.stat(f"/dev/{name}").st_mode & 0o777) for name in NODES}  # noqa: PTH116
    return {"changed": said.content, "modes": sorted(modes)}


if __name__ == "__main__":
    os.chdir(Path(__file__).parent)
    print(json.dumps({start: asyncio.run(change_modes(start)) for start in STARTS}))
