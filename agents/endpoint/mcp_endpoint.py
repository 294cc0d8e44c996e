"""The episode's tools as an MCP server over streamable HTTP: one endpoint, on which the key tells the episode.

Answers are JSON. If the tools on offer change within an episode, the answer to the call that changed them is a stream
of two events: ``notifications/tools/list_changed``, then the result. Only clients that name a protocol version with a
handshake get it, as the MCP SDKs do after theirs. All others ask for the list again when they want to know.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp import types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from gymcp.agents.endpoint.http_server import MAX_BODY_BYTES, REFUSAL_HEADERS, RequestRefused, read_body
from gymcp.agents.endpoint.tool_exchange import ToolExchange
from gymcp.types import Tool

FindExchange = Callable[[Any], ToolExchange]
"""Finds the live episode of a request, by its key. Raises KeyError."""
_CHANGES = "gymcp.changes"
"""Key, in the scope of a request that may be answered with events, of the notifications before its result."""
_EVENTS = "text/event-stream"
_TOOLS_CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


class ToolEndpoint:
    """An ASGI application. Its `run` context must be open while it serves."""

    def __init__(self, find: FindExchange) -> None:
        self._manager = StreamableHTTPSessionManager(
            _make_server(find), json_response=True, stateless=True, max_request_body_size=MAX_BODY_BYTES
        )

    def run(self) -> AbstractAsyncContextManager[None]:
        """The context in which requests are served."""
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(Request(scope, receive))
        except RequestRefused as error:
            await answer_refusal(error)(scope, receive, send)
            return
        if scope["method"] == "POST" and _takes_events(Headers(scope=scope)):
            changes: list[dict[str, str]] = []
            scope[_CHANGES] = changes
            send = _put_before_result(changes, send)
        await self._manager.asgi_app(scope, replay_body(body, receive), send)


class _ToolServer(Server[Any]):
    """Server that tells its clients in the handshake that its tools may change."""

    def create_initialization_options(self, *_: Any, **__: Any) -> Any:
        return super().create_initialization_options(NotificationOptions(tools_changed=True))


def _make_server(find: FindExchange) -> Server[Any]:
    """The server of all episodes. Calls are not checked here: the environment answers wrong ones."""

    async def list_tools(context: Any, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe(tool) for tool in find(context.request).list_tools()])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        exchange = find(context.request)
        message = await exchange.call_tool(params.name, params.arguments or {})
        changes = context.request.scope.get(_CHANGES)
        if changes is not None and exchange.take_change():
            changes.append(_TOOLS_CHANGED)
        text = types.TextContent(type="text", text=message.content)
        return types.CallToolResult(content=[text], is_error=message.is_error)

    return _ToolServer("gymcp", on_list_tools=list_tools, on_call_tool=call_tool)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read, and then what comes after it."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again


def answer_refusal(error: RequestRefused, code: int = INVALID_REQUEST, data: Any = None) -> Response:
    """The refusal in the form that MCP clients show, with a JSON-RPC error code and its data."""
    fields = {"code": code, "message": str(error)} | ({} if data is None else {"data": data})
    content = {"jsonrpc": "2.0", "id": None, "error": fields}
    return JSONResponse(content, error.status, REFUSAL_HEADERS.get(error.status))


def _takes_events(headers: Headers) -> bool:
    """True for a client that has had a handshake and reads events."""
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    return version in HANDSHAKE_PROTOCOL_VERSIONS and _EVENTS in headers.get("accept", "")


def _put_before_result(changes: list[dict[str, str]], send: Send) -> Send:
    """A `send` that makes events of the changes and of the answer, which comes in one piece, if there are changes."""
    begun: list[Message] = []

    async def send_answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            begun.append(message)
            return
        if begun:
            start = begun.pop()
            if changes:
                events = [*(json.dumps(change).encode() for change in changes), message["body"]]
                message = {**message, "body": b"".join(b"event: message\ndata: %b\n\n" % each for each in events)}
                headers = MutableHeaders(raw=list(start["headers"]))
                headers["content-type"], headers["content-length"] = _EVENTS, str(len(message["body"]))
                start = {**start, "headers": headers.raw}
            await send(start)
        await send(message)

    return send_answer


def _describe(tool: Tool) -> types.Tool:
    schema = dict(tool.input_schema) or {"type": "object", "properties": {}}
    return types.Tool(name=tool.name, description=tool.description, input_schema=schema)
