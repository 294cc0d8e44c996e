"""A streamable-HTTP front for servers that speak over pipes, for the conformance suite.

There are three ways to the server: a plain process (`direct`); the same in the sandbox, over the harness's own
transport, message by message (`wire`); and the harness's session, which has tools only (`session`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import uvicorn
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from gymcp.mcp_servers.sandbox import Launch, Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.stdio import pipe_transport
from gymcp.mcp_servers.transports.violation import ProtocolViolation
from gymcp.types import ToolCall

CALL_TIMEOUT_S = 20.0
Serve = Callable[[Any, Any], Awaitable[None]]
"""Takes the messages of one client from the first stream and writes the server's to the second, to the end."""
LOCAL = TransportSecuritySettings(
    enable_dns_rebinding_protection=True,
    allowed_hosts=["127.0.0.1:*", "localhost:*"],
    allowed_origins=["http://127.0.0.1:*", "http://localhost:*"],
)


def direct(program: Path) -> Serve:
    """A process for every client, without any part of the harness in between."""

    async def serve(read: Any, write: Any) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(program), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        async def put(message: SessionMessage) -> None:
            stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await stdin.drain()

        async def got() -> AsyncIterator[SessionMessage]:
            while line := await stdout.readline():
                yield SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False))

        try:
            await _relay(read, write, put, got())
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())

    return serve


def wire(launch: Launch, sandbox: Sandbox) -> Serve:
    """The same program in the sandbox, over the harness's transport."""

    async def serve(read: Any, write: Any) -> None:
        async with (
            sandbox.start(launch) as process,
            pipe_transport(process, ProtocolViolation(), line_bytes=launch.limits.line_bytes) as (received, writer),
        ):

            async def got() -> AsyncIterator[SessionMessage]:
                async for message in received:
                    assert isinstance(message, SessionMessage)
                    yield message

            await _relay(read, write, writer.send, got())

    return serve


def session(spec: ServerSpec, sandbox: Sandbox) -> Serve:
    """The harness's session with the program in the sandbox: its tools, and the answers as they are recorded."""

    async def serve(read: Any, write: Any) -> None:
        async with open_session(spec, sandbox, initial_state=None, seed=0) as opened:
            async for item in read:
                request = item.message
                if isinstance(request, mcp_types.JSONRPCRequest):
                    await write.send(SessionMessage(await _answer(opened, request)))

    return serve


async def _answer(
    opened: ToolSession, request: mcp_types.JSONRPCRequest
) -> mcp_types.JSONRPCResponse | mcp_types.JSONRPCError:
    params = request.params or {}
    match request.method:
        case "initialize":
            about = {"name": "recorded", "version": "1"}
            version = params["protocolVersion"]
            result: dict[str, Any] = {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": about,
            }
        case "ping":
            result = {}
        case "tools/list":
            result = {
                "tools": [
                    {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.input_schema)}
                    for tool in opened.tools
                ]
            }
        case "tools/call":
            arguments = params.get("arguments") or {}
            call = ToolCall(id=str(request.id), name=params["name"], arguments=arguments)
            answer = await opened.call_tool(call, arguments, timeout_s=CALL_TIMEOUT_S)
            result = {"content": [{"type": "text", "text": answer.content}], "isError": answer.is_error}
        case _:
            error = mcp_types.ErrorData(code=-32601, message=f"no method {request.method}")
            return mcp_types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
    return mcp_types.JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result)


async def _relay(
    read: Any, write: Any, put: Callable[[SessionMessage], Awaitable[None]], got: AsyncIterator[SessionMessage]
) -> None:
    """Pass messages both ways until the client is gone. Unrequested messages belong to the current call."""
    pending: list[str | int] = []

    async def down() -> None:
        async for message in got:
            found, about = message.message, None
            if isinstance(found, mcp_types.JSONRPCResponse | mcp_types.JSONRPCError):
                if found.id in pending:
                    pending.remove(found.id)
            elif pending:
                about = ServerMessageMetadata(related_request_id=pending[-1])
            await write.send(SessionMessage(found, metadata=about))

    async with anyio.create_task_group() as group:
        group.start_soon(down)
        async for item in read:
            if isinstance(item.message, mcp_types.JSONRPCRequest):
                pending.append(item.message.id)
            await put(SessionMessage(item.message))
        group.cancel_scope.cancel()


class Face:
    """The application: one transport, and one server, for every client."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._clients: dict[str, StreamableHTTPServerTransport] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        known = dict(scope["headers"]).get(b"mcp-session-id", b"").decode()
        transport = self._clients.get(known)
        if transport is None:
            transport = await self._begin()
        await transport.handle_request(scope, receive, send)

    async def _begin(self) -> StreamableHTTPServerTransport:
        name = uuid.uuid4().hex
        transport = StreamableHTTPServerTransport(mcp_session_id=name, security_settings=LOCAL)
        ready = asyncio.Event()

        async def run() -> None:
            async with transport.connect() as (read, write):
                ready.set()
                await self._serve(read, write)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(lambda _: ready.set())
        await ready.wait()
        self._clients[name] = transport
        return transport

    async def close(self) -> list[str]:
        """The failure on the way, in words."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        return [repr(found) for found in ended if isinstance(found, Exception)]


@contextlib.asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[str]:
    """Address of the server for clients."""
    face = Face(serve)
    server = uvicorn.Server(
        uvicorn.Config(face, host="127.0.0.1", port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            faults = await face.close()
            server.should_exit = True
            await running
    assert not faults, faults
