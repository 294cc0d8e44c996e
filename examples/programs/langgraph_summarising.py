"""LangGraph that compacts its history: every 8 messages the older ones become a summary, which the model writes.

(`pip install langchain langgraph langchain-openai langchain-mcp-adapters`.) Each compaction opens a new context.
"""

import asyncio
import os
import sys

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI


async def main() -> None:
    server = {
        "transport": "streamable_http",
        "url": os.environ["GYMCP_MCP_URL"],
        "headers": {"Authorization": f"Bearer {os.environ['GYMCP_MCP_KEY']}"},
    }
    tools = await MultiServerMCPClient({"gymcp": server}).get_tools()
    model = ChatOpenAI(model=os.environ["GYMCP_MODEL"])
    compacts = SummarizationMiddleware(model=model, trigger=("messages", 8), keep=("messages", 2))
    agent = create_agent(model, tools, middleware=[compacts])
    said = {"messages": [{"role": "user", "content": sys.stdin.read()}]}
    result = await agent.ainvoke(said, {"recursion_limit": 400})
    print(result["messages"][-1].content)


asyncio.run(main())
