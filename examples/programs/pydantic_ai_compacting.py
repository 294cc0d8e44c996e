"""Pydantic AI with a history processor (`pip install pydantic-ai-slim[openai,mcp]`).

The model sees the user's message and the newest two calls with their results. Each cut opens a new context.
"""

import asyncio
import os
import sys

from pydantic_ai import Agent, ModelMessage
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel


def keep_newest(messages: list[ModelMessage]) -> list[ModelMessage]:
    return messages if len(messages) <= 5 else [messages[0], *messages[-4:]]


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['GYMCP_MCP_KEY']}"}
    server = MCPToolset(os.environ["GYMCP_MCP_URL"], headers=headers)
    model = OpenAIChatModel(os.environ["GYMCP_MODEL"])
    agent = Agent(model, toolsets=[server], capabilities=[ProcessHistory(keep_newest)])
    async with agent:
        result = await agent.run(sys.stdin.read())
    print(result.output)


asyncio.run(main())
