"""The OpenAI SDK's tool runner, which speaks responses, with the tools of an MCP server (`pip install openai mcp`)."""

import asyncio
import os
import sys

import httpx2
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client
from openai import AsyncOpenAI
from openai.lib.responses_tool_runner import AsyncRegisteredFunction, AsyncResponsesToolRunner


def register(session: ClientSession, tool: types.Tool) -> AsyncRegisteredFunction:
    async def execute(arguments: dict[str, object]) -> str:
        result = await session.call_tool(tool.name, arguments)
        return "".join(part.text for part in result.content)

    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return AsyncRegisteredFunction({"type": "function", "strict": False, **function}, execute)


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['GYMCP_MCP_KEY']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=600) as http,
        streamable_http_client(os.environ["GYMCP_MCP_URL"], http_client=http) as (reading, writing, *_),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        tools = (await session.list_tools()).tools
        runner = AsyncResponsesToolRunner(functions=[register(session, tool) for tool in tools])
        asked = {"model": os.environ["GYMCP_MODEL"], "input": sys.stdin.read()}
        response = await runner.run(AsyncOpenAI(), asked, max_steps=100)
        print(response.output_text)


asyncio.run(main())
