"""A loop of one's own over the Anthropic SDK and the MCP SDK (`pip install anthropic mcp`)."""

import asyncio
import os
import sys

import httpx2
from anthropic import AsyncAnthropic
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def main() -> None:
    model, messages = AsyncAnthropic(), [{"role": "user", "content": sys.stdin.read()}]
    headers = {"Authorization": f"Bearer {os.environ['GYMCP_MCP_KEY']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=600) as http,
        streamable_http_client(os.environ["GYMCP_MCP_URL"], http_client=http) as (reading, writing, *_),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        tools = [
            {"name": tool.name, "description": tool.description or "", "input_schema": tool.input_schema}
            for tool in (await session.list_tools()).tools
        ]
        while True:
            answer = await model.messages.create(
                model=os.environ["GYMCP_MODEL"], messages=messages, tools=tools, max_tokens=1024
            )
            messages.append({"role": "assistant", "content": [part.model_dump() for part in answer.content]})
            calls = [part for part in answer.content if part.type == "tool_use"]
            if not calls:
                print("".join(part.text for part in answer.content if part.type == "text"))
                return
            results = []
            for call in calls:
                result = await session.call_tool(call.name, call.input)
                text = "".join(part.text for part in result.content)
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": text})
            messages.append({"role": "user", "content": results})


asyncio.run(main())
