"""Pydantic AI (`pip install pydantic-ai-slim[openai,mcp]`)."""

import asyncio
import os
import sys

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['GYMCP_MCP_KEY']}"}
    server = MCPToolset(os.environ["GYMCP_MCP_URL"], headers=headers)
    agent = Agent(OpenAIChatModel(os.environ["GYMCP_MODEL"]), toolsets=[server])
    async with agent:
        result = await agent.run(sys.stdin.read())
    print(result.output)


asyncio.run(main())
