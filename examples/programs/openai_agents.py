"""OpenAI's Agents SDK (`pip install openai-agents`). Try: gymcp eval ENV --agent 'cmd:python openai_agents.py'"""

import asyncio
import os
import sys

from agents.mcp import MCPServerStreamableHttp

from agents import Agent, Runner, set_tracing_disabled


async def main() -> None:
    set_tracing_disabled(True)
    params = {
        "url": os.environ["GYMCP_MCP_URL"],
        "headers": {"Authorization": f"Bearer {os.environ['GYMCP_MCP_KEY']}"},
    }
    async with MCPServerStreamableHttp(params=params) as tools:
        agent = Agent(name="agent", model=os.environ["GYMCP_MODEL"], mcp_servers=[tools])
        result = await Runner.run(agent, sys.stdin.read(), max_turns=100)
        print(result.final_output)


asyncio.run(main())
