"""smolagents (`pip install "smolagents[openai,mcp]" "mcp<2"`): its tool-calling agent."""

import os
import sys

from smolagents import MCPClient, OpenAIModel, ToolCallingAgent

server = {
    "url": os.environ["GYMCP_MCP_URL"],
    "transport": "streamable-http",
    "headers": {"Authorization": f"Bearer {os.environ['GYMCP_MCP_KEY']}"},
}
model = OpenAIModel(
    model_id=os.environ["GYMCP_MODEL"], api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
with MCPClient(server, structured_output=False) as tools:
    agent = ToolCallingAgent(tools=tools, model=model, max_steps=100, verbosity_level=0)
    print(agent.run(sys.stdin.read()))
