"""The Anthropic SDK's tool runner with the tools of an MCP server (`pip install anthropic mcp`).

The runner asks for a thread, which the server would hold. The gateway holds none, and the runner sends all messages.
"""

import asyncio
import os
import sys

import httpx2
from anthropic import AsyncAnthropic
from anthropic.lib.tools.mcp import async_mcp_tool
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['GYMCP_MCP_KEY']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=600) as http,
        streamable_http_client(os.environ["GYMCP_MCP_URL"], http_client=http) as (reading, writing, *_),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        runner = AsyncAnthropic().beta.messages.tool_runner(
            model=os.environ["GYMCP_MODEL"],
            messages=[{"role": "user", "content": sys.stdin.read()}],
            tools=[async_mcp_tool(tool, session) for tool in (await session.list_tools()).tools],
            max_tokens=1024,
        )
        answer = await runner.until_done()
        print("".join(part.text for part in answer.content if part.type == "text"))


asyncio.run(main())
