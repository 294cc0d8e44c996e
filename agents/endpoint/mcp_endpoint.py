"""The episode's tools as an MCP server over streamable HTTP: one endpoint, on which the key tells the episode.

The SDK serves it. A plain call of a tool is answered here, because the SDK's stateless transport starts three tasks for
each request, which costs more than all else; the answer is the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pydantic_core
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gymcp.agents.endpoint.http_server import read_body, replay_body
from gymcp.agents.endpoint.tool_exchange import ToolExchange
from gymcp.types import Json, Tool

FindExchange = Callable[[Any], ToolExchange]
"""Finds the live episode of a request, by its key. Raises RequestRefused."""
_JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlainCall:
    """A call of a tool, with the id of its request."""

    id: int | str
    name: str
    arguments: dict[str, Json]


class McpEndpoint:
    """An ASGI application, which may raise RequestRefused. Its `run` context must be open while it serves.

    Calls are not checked here: the environment answers wrong ones.
    """

    def __init__(self, find: FindExchange, max_body_bytes: int) -> None:
        self._find = find
        self._max_body_bytes = max_body_bytes
        server: Server[Any] = Server("gymcp", on_list_tools=self._list_tools, on_call_tool=self._call_tool)
        self._sdk = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=max_body_bytes
        )

    def run(self) -> AbstractAsyncContextManager[None]:
        """The context in which requests are served."""
        return self._sdk.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if not self._may_be_plain(request):
            await self._sdk.asgi_app(scope, receive, send)
            return
        body = await read_body(request)
        if (call := _read_plain_call(body)) is None:
            await self._sdk.asgi_app(scope, replay_body(body, receive), send)
            return
        message = await self._find(request).call_tool(call.name, call.arguments)
        result = {"content": [{"type": "text", "text": message.content}], "isError": message.is_error}
        answer = json.dumps({"jsonrpc": "2.0", "id": call.id, "result": result})
        await Response(answer, media_type=_JSON)(scope, receive, send)

    def _may_be_plain(self, request: Request) -> bool:
        """True if the headers are those of most clients, about which there is nothing to say."""
        headers = request.headers
        size, version = headers.get("content-length", ""), headers.get(MCP_PROTOCOL_VERSION_HEADER)
        return (
            request.method == "POST"
            and headers.get("content-type") == _JSON
            and _JSON in headers.get("accept", "").split(", ")
            and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS)
            and size.isdecimal()
            and int(size[:20]) <= self._max_body_bytes
        )

    async def _list_tools(self, context: Any, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe(tool) for tool in self._find(context.request).tools])

    async def _call_tool(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        message = await self._find(context.request).call_tool(params.name, params.arguments or {})
        text = types.TextContent(type="text", text=message.content)
        return types.CallToolResult(content=[text], is_error=message.is_error)


def _read_plain_call(body: bytes) -> _PlainCall | None:
    """The call in a body; None for anything else, and for a call with parts that only the SDK understands."""
    try:
        message = pydantic_core.from_json(body)
    except ValueError:
        return None
    if not isinstance(message, dict) or message.keys() != {"jsonrpc", "id", "method", "params"}:
        return None
    call_id, params = message["id"], message["params"]
    if (message["jsonrpc"], message["method"]) != ("2.0", "tools/call") or type(call_id) not in (int, str):
        return None
    if not isinstance(params, dict) or params.keys() - {"name", "arguments", "_meta"}:
        return None
    name, arguments, meta = params.get("name"), params.get("arguments"), params.get("_meta")
    if not isinstance(name, str) or not isinstance(arguments, dict | None) or not _is_plain_meta(meta):
        return None
    return _PlainCall(id=call_id, name=name, arguments=arguments or {})


def _is_plain_meta(meta: Json) -> bool:
    """True for metadata that ask for nothing but progress, of which a call here has none to tell."""
    if meta is None:
        return True
    return isinstance(meta, dict) and meta.keys() == {"progressToken"} and type(meta["progressToken"]) in (int, str)


def _describe(tool: Tool) -> types.Tool:
    schema = dict(tool.input_schema) or {"type": "object", "properties": {}}
    return types.Tool(name=tool.name, description=tool.description, input_schema=schema)
