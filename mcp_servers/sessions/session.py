"""A session with one MCP server: its tools, its calls, and its state."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from gymcp.errors import IntegrityError, ProtocolError, ServerDied, ServerLimitExceeded, ServerTimeout
from gymcp.mcp_servers.loop_share import GRANT_S, charge_thread
from gymcp.mcp_servers.native.runtime import CALL_LIMIT
from gymcp.mcp_servers.sandbox import SandboxProcess
from gymcp.mcp_servers.sanitize import plain_text
from gymcp.mcp_servers.sessions.connection import ServerConnection, await_answer
from gymcp.mcp_servers.sessions.state_trackers import StateTracker
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.tools.tool_list import (
    MAX_LIST_CHARS,
    ToolList,
    check_and_store_list,
    compute_tools_key,
    find_list,
    hash_listing,
)
from gymcp.mcp_servers.workspaces.workspace import Workspace
from gymcp.types import Json, Tool, ToolCall, ToolResult

PING_TIMEOUT_S = 5.0
SERVICE_GRACE_S = 0.5
"""Seconds to wait, after a call that failed, for the end of a server whose service may have ended."""
MAX_TOOLS = 10_000
MAX_PAGES = 100
MAX_TEXT_CHARS = 1_000_000
"""Characters of one result that are kept: ten times what an agent sees. Cleaning them takes up to 0.1 s."""


class _ListResult(BaseModel):
    tools: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """Tools and state of a session between two calls, for a session with a copy of its server."""

    tools: tuple[Tool, ...]
    tracker: StateTracker


class ToolSession:
    """A live session. `open_session` makes it; the task that opened it uses it."""

    def __init__(self, server: ServerConnection, tracker: StateTracker) -> None:
        self.spec: ServerSpec = server.spec
        self.tools: tuple[Tool, ...] = ()
        self._server = server
        self._tracker = tracker

    @property
    def process(self) -> SandboxProcess:
        return self._server.process

    @property
    def is_lost(self) -> bool:
        """True if the server broke the protocol, or has ended by itself or by a limit."""
        return self._server.is_lost

    @property
    def workspace(self) -> Workspace | None:
        """The server's files, if they are its state."""
        return self._tracker.workspace

    @property
    def world_key(self) -> str:
        """Digest of the server's state, as its tracker knows it; for a state in files as of the last `update`."""
        return self._tracker.key

    @property
    def has_observable_state(self) -> bool:
        """True if `state` returns the server's state."""
        return self._tracker.is_observable

    @property
    def key_identifies_state(self) -> bool:
        """True if equal keys mean equal states. A log of calls does not identify a state."""
        return self._tracker.key_identifies_state

    async def start(self, initial_state: Json, seed: int) -> None:
        """Hand over the initial state and read the tool list. Raises EnvInfraError, IntegrityError."""
        tools_key = await self._tracker.start(self._server, initial_state, seed)
        async with self._server.boundary("list", self.spec.opening_timeout_s):
            listed = find_list(self.spec, tools_key) if tools_key is not None else None
            listed = listed or await self._list_tools(tools_key)
        self.tools = listed.tools
        expected = self.spec.tools_sha256
        if expected is not None and listed.sha256 != expected:
            why = "its tools are not the locked ones; for what has changed run: gymcp servers check"
            raise IntegrityError(self._server.message("list", why))

    def save(self) -> SessionState:
        """Tools and state as they are now."""
        return SessionState(tools=self.tools, tracker=self._tracker.fork())

    async def resume(self, tools: tuple[Tool, ...]) -> None:
        """Go on from a saved state: the server is a copy, and the tracker is that of the state.

        Raises CannotFork if the server is not in that state.
        """
        self.tools = tools
        await self._tracker.resume(self._server)

    async def update(self) -> None:
        """Take note of what calls changed in the server's files. A declared state comes with the results."""
        await self._tracker.update()

    async def confirm(self) -> None:
        """Look at the state itself if a key or a time only claims that it has not changed.

        A declared state that was not fetched since the last call is compared with its key; raises ProtocolError. Files
        that were written to in this episode are read again, whatever their times say; the key may then be another.
        Raises ServerDied if a service of the server has ended.
        """
        if self.spec.services and self.process.returncode is not None:
            lost = await self._server.explain_loss("services")
            raise lost if self.process.exceeded_limit() is None else ServerLimitExceeded(str(lost))
        await self._tracker.verify(self._server)

    async def state(self) -> tuple[str, Json]:
        """(content address, the state as it is recorded). Only for an observable state. Raises EnvInfraError.

        Raises ProtocolError if a declared state does not have the key that the server has claimed for it.
        """
        return await self._tracker.state(self._server)

    async def call_tool(
        self, call: ToolCall, arguments: Mapping[str, Json], *, timeout_s: float, limit: str = CALL_LIMIT
    ) -> ToolResult:
        """The tool's answer. A tool that fails or times out is a result with ``is_error``. `limit`: that time in words.

        Raises ServerDied, ServerTimeout or ProtocolError if the server itself is lost. Raises ServerLimitExceeded if
        the call is the reason: it took more than its sandbox gives, or too long at a server that declares its state.
        Raises Undigestible if the call left a declared state that cannot be recorded.
        """
        started = time.perf_counter()
        stage = f"tool '{call.name}'"
        try:
            async with self._server.boundary(stage, timeout_s + 2 * PING_TIMEOUT_S):
                content, is_error = await self._send_call(call.name, arguments, timeout_s, limit)
                if is_error and self.spec.services:
                    await self._await_end(stage)
        except ServerTimeout as error:
            if not self._tracker.interrupts_calls:
                why = f"hung: no answer within {timeout_s:g} s, {limit}, nor to a ping"
                raise ServerTimeout(self._server.message(stage, why)) from error
            why = f"did not end within {timeout_s:g} s, {limit}"
            raise ServerLimitExceeded(self._server.message(stage, why)) from error
        except ServerDied as error:
            if self.process.exceeded_limit() is None:
                raise
            raise ServerLimitExceeded(str(error)) from error
        self._tracker.log_call(call.name, arguments)
        return ToolResult(
            call_id=call.id,
            content=content,
            is_error=is_error,
            seconds=time.perf_counter() - started,
            content_bytes=len(content.encode("utf-8", "surrogatepass")),
        )

    async def _await_end(self, stage: str) -> None:
        """Raise ServerDied if the server ends within a moment: a call may have failed because a service has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SERVICE_GRACE_S):
                await self.process.wait()
        if self.process.returncode is not None:
            raise await self._server.explain_loss(stage)

    async def _send_call(
        self, name: str, arguments: Mapping[str, Json], timeout_s: float, limit: str
    ) -> tuple[str, bool]:
        """(text, is_error)."""
        try:
            result = await self._tracker.request_call(self._server, name, dict(arguments), timeout_s)
        except MCPError as error:
            # The SDK's codes for a closed connection and a slow answer are codes that servers use, too. Either way it
            # is the tool's failure, provided that the server still answers.
            if error.code in (mcp_types.CONNECTION_CLOSED, mcp_types.REQUEST_TIMEOUT):
                session = self._server.client.session
                request = session.send_request(mcp_types.ListToolsRequest(), mcp_types.ListToolsResult)
                await await_answer(PING_TIMEOUT_S, request)
            await self._tracker.refresh_key(self._server)
            if error.code != mcp_types.REQUEST_TIMEOUT:
                return self._clean(error.message), True
            return f"tool '{name}' did not answer within {timeout_s:g} s, {limit}", True
        except (ValidationError, RuntimeError) as error:
            # The SDK refuses what is no result at all: a broken tool, not a dead one.
            await self._tracker.refresh_key(self._server)
            return f"tool '{name}' gave an invalid result: {plain_text(str(error)).splitlines()[0]}", True
        self._tracker.read_result(self._server, f"tool '{name}'", result)
        return self._clean(_text(result.content)), bool(result.is_error)

    def _clean(self, text: str) -> str:
        """Text of an answer without escape sequences, cut to `MAX_TEXT_CHARS`."""
        cut = len(text) - MAX_TEXT_CHARS
        with self._server.share.charge_elapsed():
            clean = plain_text(text[:MAX_TEXT_CHARS])
        return f"{clean}\n[cut: {cut} more characters]" if cut > 0 else clean

    async def _list_tools(self, tools_key: str | None) -> ToolList:
        try:
            tools = await (self._list_pages() if tools_key is None else self._list_verified(tools_key))
            listing = hash_listing(tools)
            if (known := find_list(self.spec, tools_key, listing)) is not None:
                return known
            # in a thread: checking a long list takes time, in which other episodes go on
            return await charge_thread(self._server.share, check_and_store_list, self.spec, tools_key, listing)
        except ValidationError:
            raise
        except ValueError as fault:
            raise ProtocolError(self._server.message("list", str(fault))) from None

    async def _list_pages(self) -> list[mcp_types.Tool]:
        tools: list[mcp_types.Tool] = []
        cursor: str | None = None
        chars = 0
        for _ in range(MAX_PAGES):
            page = await self._server.client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return tools
            if len(tools) > MAX_TOOLS:
                raise ProtocolError(self._server.message("list", f"it lists more than {MAX_TOOLS} tools"))
            self._server.share.charge(GRANT_S)  # the next page is its wish, not ours
            chars += hash_listing(page.tools).chars
            if chars > MAX_LIST_CHARS:
                why = f"its tool list has more than {MAX_LIST_CHARS} characters"
                raise ProtocolError(self._server.message("list", why))
        raise ProtocolError(self._server.message("list", f"its list has more than {MAX_PAGES} pages"))

    async def _list_verified(self, tools_key: str) -> list[mcp_types.Tool]:
        """Tools that have the claimed key. Later episodes get them without asking, so others raise ProtocolError."""
        answer = await self._server.client.session.send_request(mcp_types.ListToolsRequest(), _ListResult)
        key = compute_tools_key(answer.tools)
        if key != tools_key:
            why = f"it claims the key {tools_key} for a tool list with {key}"
            raise ProtocolError(self._server.message("list", why))
        return [mcp_types.Tool.model_validate(tool, by_name=False) for tool in answer.tools]


def _text(content: list[Any]) -> str:
    """The texts of a result. Any other block is named, so that the agent knows that it was there."""
    texts = (block.text if isinstance(block, mcp_types.TextContent) else f"[{block.type} content]" for block in content)
    return "\n".join(texts)
