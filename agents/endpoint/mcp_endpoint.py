"""The episode's tools as an MCP server over streamable HTTP: one endpoint, on which the key tells the episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from gymcp.agents.endpoint.tool_exchange import ToolExchange
from gymcp.types import Tool

FindExchange = Callable[[Any], ToolExchange]
"""Finds the live episode of a request, by its key. Raises KeyError."""


def make_endpoint(find: FindExchange, max_body_bytes: int) -> StreamableHTTPSessionManager:
    """The endpoint, to be run and mounted. Calls are not checked here: the environment answers wrong ones."""

    async def list_tools(context: Any, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe(tool) for tool in find(context.request).tools])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        message = await find(context.request).call_tool(params.name, params.arguments or {})
        text = types.TextContent(type="text", text=message.content)
        return types.CallToolResult(content=[text], is_error=message.is_error)

    server: Server[Any] = Server("gymcp", on_list_tools=list_tools, on_call_tool=call_tool)
    return StreamableHTTPSessionManager(
        server, json_response=True, stateless=True, max_request_body_size=max_body_bytes
    )


def _describe(tool: Tool) -> types.Tool:
    schema = dict(tool.input_schema) or {"type": "object", "properties": {}}
    return types.Tool(name=tool.name, description=tool.description, input_schema=schema)
