"""The client under test of the conformance suite, over the harness's session: ``client_driver.py URL``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from gymcp.errors import ProtocolError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import ToolCall

TIMEOUT_S = 100.0
LOG = logging.getLogger("httpx2")


class Listening(logging.Handler):
    """Event that is set once the stream for unrequested messages is open, as the HTTP client's log shows."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and "GET" in record.args:
            self.begun.set()


async def main(url: str) -> None:
    """List the tools and call each one. All arguments of the suite's tools are numbers."""
    spec = ServerSpec(name="conformance", url=url, state="stateless")
    opened = open_session(spec, get_sandbox("none"), initial_state=None, seed=0)
    listening = Listening()
    LOG.setLevel(logging.INFO)
    LOG.addHandler(listening)
    try:
        async with asyncio.timeout(TIMEOUT_S), opened as session:
            if os.environ["MCP_CONFORMANCE_SCENARIO"] == "sse-retry":
                await (
                    listening.begun.wait()
                )  # the suite takes any stream opened after the call for the one it waits for
            for tool in session.tools:
                arguments = dict.fromkeys(tool.input_schema.get("properties", {}), 1)
                call = ToolCall(id="call_1", name=tool.name, arguments=arguments)
                print(await session.call_tool(call, arguments, timeout_s=TIMEOUT_S))
    except ProtocolError as error:
        # The server of this scenario has no tools, which no environment can be made of: said after the handshake.
        if os.environ["MCP_CONFORMANCE_SCENARIO"] != "initialize" or "it lists no tools" not in str(error):
            raise


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
