"""OpenAI's Agents SDK with a sub-agent (`pip install openai-agents`): a manager hands the work to a clerk.

Each has a context of its own: two rows to train on.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from agents.mcp import MCPServerStreamableHttp

from agents import Agent, Runner, set_tracing_disabled

TOOLS = json.loads(Path(os.environ["GYMCP_MCP_AGENTS_CONFIG"]).read_text())


async def main() -> None:
    set_tracing_disabled(True)
    model = os.environ["GYMCP_MODEL"]
    async with MCPServerStreamableHttp(**TOOLS) as tools:
        clerk = Agent(name="clerk", model=model, instructions="Do what you are asked.", mcp_servers=[tools])
        ask_clerk = clerk.as_tool(
            tool_name="ask_clerk", tool_description="Ask the clerk to do something, in words.", max_turns=100
        )
        manager = Agent(name="manager", model=model, instructions="Let the clerk do the work.", tools=[ask_clerk])
        result = await Runner.run(manager, sys.stdin.read(), max_turns=100)
        print(result.final_output)


asyncio.run(main())
