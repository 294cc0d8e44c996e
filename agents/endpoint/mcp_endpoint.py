"""The tools of live episodes as an MCP server over streamable HTTP: one endpoint; a request's key names the episode.

The SDK serves the endpoint. Plain calls of tools are answered here, with the same answers, because the SDK's stateless
transport starts three tasks for each request, which would cost more than everything else.

Answers are JSON. If the tools on offer change within an episode, the answer to the call that changed them is a stream
of two events: ``notifications/tools/list_changed``, then the result. Only clients that name a protocol version with a
handshake get it, as the MCP SDKs do after theirs. All others ask for the list again when they want to know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pydantic_core
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

from gymcp.agents.endpoint.http_server import (
    MAX_BODY_BYTES,
    REFUSAL_HEADERS,
    RequestRefused,
    read_body,
    replay_body,
)
from gymcp.agents.endpoint.tool_exchange import ToolExchange
from gymcp.types import Json, Tool

FindExchange = Callable[[Any], ToolExchange]
"""Finds the live episode of a request, by its key. Raises RequestRefused."""
_CHANGES = "gymcp.changes"
"""Key, in the scope of a request that may be answered with events, of the notifications before its result."""
_JSON, _EVENTS = "application/json", "text/event-stream"
_TOOLS_CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlainCall:
    """A call of a tool, with the id of its request."""

    id: int | str
    name: str
    arguments: dict[str, Json]


class McpEndpoint:
    """An ASGI application. Its `run` context must be open while it serves.

    Calls are not checked here: the environment answers wrong ones.
    """

    def __init__(self, find: FindExchange) -> None:
        self._find = find
        self._sdk = StreamableHTTPSessionManager(
            _make_server(find), json_response=True, stateless=True, max_request_body_size=MAX_BODY_BYTES
        )

    def run(self) -> AbstractAsyncContextManager[None]:
        """The context in which requests are served."""
        return self._sdk.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            body = await read_body(request)
            call = _read_plain_call(body) if _may_be_plain(request) else None
            if call is not None:
                response = await self._answer_plain_call(request, call)
                await response(scope, receive, send)
                return
        except RequestRefused as error:
            await answer_refusal(error)(scope, receive, send)
            return
        if request.method == "POST" and _takes_events(request.headers):
            changes: list[dict[str, str]] = []
            scope[_CHANGES] = changes
            send = _put_before_result(changes, send)
        await self._sdk.asgi_app(scope, replay_body(body, receive), send)

    async def _answer_plain_call(self, request: Request, call: _PlainCall) -> Response:
        """Raises RequestRefused."""
        exchange = self._find(request)
        message = await exchange.call_tool(call.name, call.arguments)
        result = {"content": [{"type": "text", "text": message.content}], "isError": message.is_error}
        answer = json.dumps({"jsonrpc": "2.0", "id": call.id, "result": result}).encode()
        if _takes_events(request.headers) and await _take_change(request, exchange):
            return Response(_write_events([_TOOLS_CHANGED], answer), media_type=_EVENTS)
        return Response(answer, media_type=_JSON)


async def _take_change(request: Request, exchange: ToolExchange) -> bool:
    """True, once, if the tools have changed and the client is still there to be told so."""
    return exchange.has_change and not await request.is_disconnected() and exchange.take_change()


def _may_be_plain(request: Request) -> bool:
    """True if the headers are those of most clients, about which there is nothing to say."""
    headers = request.headers
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    return (
        request.method == "POST"
        and headers.get("content-type") == _JSON
        and _JSON in headers.get("accept", "").split(", ")
        and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS)
    )


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
        if changes is not None and await _take_change(context.request, exchange):
            changes.append(_TOOLS_CHANGED)
        text = types.TextContent(type="text", text=message.content)
        return types.CallToolResult(content=[text], is_error=message.is_error)

    return _ToolServer("gymcp", on_list_tools=list_tools, on_call_tool=call_tool)


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
                message = {**message, "body": _write_events(changes, message["body"])}
                headers = MutableHeaders(raw=list(start["headers"]))
                headers["content-type"], headers["content-length"] = _EVENTS, str(len(message["body"]))
                start = {**start, "headers": headers.raw}
            await send(start)
        await send(message)

    return send_answer


def _write_events(changes: Sequence[Mapping[str, str]], answer: bytes) -> bytes:
    """A body of events: the notifications, then the answer."""
    events = [*(json.dumps(change).encode() for change in changes), answer]
    return b"".join(b"event: message\ndata: %b\n\n" % each for each in events)


def _describe(tool: Tool) -> types.Tool:
    schema = dict(tool.input_schema) or {"type": "object", "properties": {}}
    return types.Tool(name=tool.name, description=tool.description, input_schema=schema)
