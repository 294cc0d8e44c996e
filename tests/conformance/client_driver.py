"""What the conformance suite runs as the client under test: ``client_driver.py URL``, over the harness's session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from gymcp.errors import ProtocolError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.session import ToolSession, open_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import ToolCall

BRIDGE = Path(__file__).with_name("http_to_pipes.py")
TIMEOUT_S = 100.0


@contextlib.asynccontextmanager
async def session_with(url: str) -> AsyncIterator[ToolSession]:
    """The harness's session speaks over pipes, so HTTP is the bridge's, which is the SDK's."""
    spec = ServerSpec(name="conformance", argv=(sys.executable, str(BRIDGE), url))
    async with open_session(spec, get_sandbox("none"), initial_state=None, seed=0) as session:
        yield session


async def main(url: str) -> None:
    """Lists the tools and calls each one; all arguments of the suite's tools are numbers."""
    try:
        async with asyncio.timeout(TIMEOUT_S), session_with(url) as session:
            for tool in session.tools:
                arguments = dict.fromkeys(tool.input_schema.get("properties", {}), 1)
                call = ToolCall(id="call_1", name=tool.name, arguments=arguments)
                print(await session.call(call, arguments, timeout_s=TIMEOUT_S))
    except ProtocolError as error:
        # The server of this scenario has no tools, which no environment can be made of: said after the handshake.
        if os.environ["MCP_CONFORMANCE_SCENARIO"] != "initialize" or "it lists no tools" not in str(error):
            raise


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
