"""LangGraph (`pip install langchain langgraph langchain-openai langchain-mcp-adapters`)."""

import asyncio
import os
import sys

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI


async def main() -> None:
    server = {
        "transport": "streamable_http",
        "url": os.environ["GYMCP_MCP_URL"],
        "headers": {"Authorization": f"Bearer {os.environ['GYMCP_MCP_KEY']}"},
    }
    tools = await MultiServerMCPClient({"gymcp": server}).get_tools()
    agent = create_agent(ChatOpenAI(model=os.environ["GYMCP_MODEL"]), tools)
    said = {"messages": [{"role": "user", "content": sys.stdin.read()}]}
    result = await agent.ainvoke(said, {"recursion_limit": 200})
    print(result["messages"][-1].content)


asyncio.run(main())
