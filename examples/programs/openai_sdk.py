"""A loop of one's own over the OpenAI SDK and the MCP SDK (`pip install openai mcp`)."""

import asyncio
import json
import os
import sys

import httpx2
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from openai import AsyncOpenAI


async def main() -> None:
    model, messages = AsyncOpenAI(), [{"role": "user", "content": sys.stdin.read()}]
    headers = {"Authorization": f"Bearer {os.environ['GYMCP_MCP_KEY']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=600) as http,
        streamable_http_client(os.environ["GYMCP_MCP_URL"], http_client=http) as (reading, writing, *_),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        tools = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema},
            }
            for tool in (await session.list_tools()).tools
        ]
        while True:
            answer = await model.chat.completions.create(
                model=os.environ["GYMCP_MODEL"], messages=messages, tools=tools
            )
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                print(message.content)
                return
            for call in message.tool_calls:
                result = await session.call_tool(call.function.name, json.loads(call.function.arguments))
                text = "".join(part.text for part in result.content)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


asyncio.run(main())
