"""A session with one sandboxed MCP server: its tools, its calls, and its state."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import mcp
import mcp_types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from gymcp.errors import (
    CannotFork,
    EnvInfraError,
    IntegrityError,
    ProtocolError,
    ServerDied,
    ServerExhausted,
    ServerTimeout,
    Undigestible,
)
from gymcp.mcp_servers.digest import digest_and_chars
from gymcp.mcp_servers.loop_share import Deadline
from gymcp.mcp_servers.native.runtime import (
    LINE_KEY,
    RESULT_STATE_KEY,
    STATE_KEY,
    STATE_UNAVAILABLE,
    STATE_WITHIN_KEY,
    TIMEOUT_KEY,
    canonical_json,
)
from gymcp.mcp_servers.redaction import Redaction
from gymcp.mcp_servers.sandbox import SandboxProcess
from gymcp.mcp_servers.sanitize import plain_text
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.tools.tool_list import (
    MAX_LIST_CHARS,
    ToolList,
    checked_list,
    key_of_listing,
    known_list,
    told_list,
)
from gymcp.mcp_servers.transports.stdio import TOO_LARGE, Violation
from gymcp.mcp_servers.workspaces.digester import Digester
from gymcp.mcp_servers.workspaces.workspace import Workspace
from gymcp.types import Json, Tool, ToolCall, ToolResult

BROUGHT_CHARACTERS = 2000
"""Of a state that comes along with a call's result; a longer one is fetched, where it is new."""
PING_TIMEOUT_S = 5.0
END_TIMEOUT_S = 5.0
"""For a server that hung up: what ended it is known with its end, which on a busy machine takes its time."""
OWN_SHARE = 0.9
"""Of a call's time, after which the native runtime interrupts the tool by itself."""
MAX_TOOLS = 10_000
MAX_PAGES = 100
MAX_STATES_CHARS = 128_000_000
"""Characters of all states that a server declares in one episode, as JSON; in memory they take up to 12 times that."""
MAX_TEXT_CHARS = 1_000_000
"""Characters of one result that are kept, ten times what an agent is shown; to clean them takes up to 0.1 s."""
_OPENING = ("handshake", "setup", "list")
STATELESS = hashlib.sha256(b"stateless").hexdigest()


ResultT = TypeVar("ResultT", bound=BaseModel)
AnswerT = TypeVar("AnswerT")


class _SetupResult(BaseModel):
    stateKey: str | None = None
    toolsKey: str | None = None
    """Digest of the tool list: one that was read before is not read again."""


class _StateResult(BaseModel):
    stateKey: str
    state: Any = None


class _ListResult(BaseModel):
    tools: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a session knows of its server between two calls."""

    tools: tuple[Tool, ...]
    known_key: str
    log: hashlib._Hash
    """Of an opaque server's calls."""


class ToolSession:
    """A live session. Made by `open_session`; used by the task that opened it."""

    def __init__(self, spec: ServerSpec, client: mcp.Client, process: SandboxProcess, violation: Violation) -> None:
        self.spec = spec
        self.tools: tuple[Tool, ...] = ()
        self._client = client
        self._process = process
        self._violation = violation
        self.redaction: Redaction | None = None
        """What must not be told of the server's last words."""
        self.workspace: Workspace | None = None
        """Where the state is in files."""
        self.digester: Digester | None = None
        self._known_key = ""
        self._told: tuple[str, Json] | None = None
        """The declared state with its address, once it was fetched; None again from a call on."""
        self._brought: tuple[str, Json] | None = None
        """The same, as it came with a call's result."""
        self._told_chars = 0
        """Of all states that were told, which the record keeps."""
        self._log = hashlib.sha256()

    @property
    def world_key(self) -> str:
        """Digest of the server's state, as its spec says how the harness knows it; of files, at the last `update`."""
        match self.spec.state:
            case "opaque":
                return self._log.hexdigest()
            case "stateless":
                return STATELESS
            case _:
                return self._known_key

    @property
    def tells_state(self) -> bool:
        """True where `state` has something to tell."""
        return self.spec.state not in ("opaque", "stateless")

    async def update(self) -> None:
        """Takes note of what calls changed in the server's files; what a server declares came with their results."""
        if self.digester is not None:
            self._known_key = await self.digester.key()

    async def start(self, initial_state: Json, seed: int) -> None:
        """Hands over the initial state and reads the tool list. Raises EnvInfraError, IntegrityError."""
        tools_key = None
        if self.spec.state == "declared":
            async with self.boundary("setup", self.spec.start_timeout_s):
                params = {"initialState": initial_state, "seed": seed, LINE_KEY: self.spec.limits.line_bytes}
                answer = await self._harness_request("gymcp/setup", params, _SetupResult)
            if answer.stateKey is None:
                raise ProtocolError(self._say("setup", f"it declares a state, but sends no stateKey ({STATE_KEY})"))
            self._known_key, tools_key = answer.stateKey, answer.toolsKey
        async with self.boundary("list", self.spec.start_timeout_s):
            listed = known_list(self.spec, tools_key) if tools_key is not None else None
            listed = listed or await self._list_tools(tools_key)
        self.tools = listed.tools
        wanted = self.spec.tools_sha256
        if wanted is not None and listed.sha256 != wanted:
            raise IntegrityError(
                self._say("list", "its tools are not the locked ones; for what has changed run: gymcp servers check")
            )

    @property
    def process(self) -> SandboxProcess:
        return self._process

    def standing(self) -> Standing:
        return Standing(tools=self.tools, known_key=self._known_key, log=self._log.copy())

    async def resume(self, standing: Standing) -> None:
        """Goes on where another session stood, when this one's server was copied from that one's.

        Raises CannotFork where it is not in the state in which that one was.
        """
        self.tools, self._known_key, self._log = standing.tools, standing.known_key, standing.log.copy()
        if self.spec.state == "declared":
            try:
                await self.state()
            except EnvInfraError as error:
                raise CannotFork(str(error)) from error

    async def _list_tools(self, tools_key: str | None) -> ToolList:
        try:
            told = told_list(await (self._pages() if tools_key is None else self._proven_tools(tools_key)))
            if (known := known_list(self.spec, tools_key, told)) is not None:
                return known
            # in a thread: a long list takes its time, in which other episodes go on
            return await asyncio.to_thread(checked_list, self.spec, tools_key, told)
        except ValidationError:
            raise
        except ValueError as fault:
            raise ProtocolError(self._say("list", str(fault))) from None

    async def _pages(self) -> list[mcp_types.Tool]:
        tools: list[mcp_types.Tool] = []
        cursor: str | None = None
        chars = 0
        for _ in range(MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return tools
            if len(tools) > MAX_TOOLS:
                raise ProtocolError(self._say("list", f"it lists more than {MAX_TOOLS} tools"))
            chars += told_list(page.tools).chars
            if chars > MAX_LIST_CHARS:
                raise ProtocolError(self._say("list", f"its tool list has more than {MAX_LIST_CHARS} characters"))
        raise ProtocolError(self._say("list", f"its list has more than {MAX_PAGES} pages"))

    async def _proven_tools(self, tools_key: str) -> list[mcp_types.Tool]:
        """Those of the key, which later episodes will get without asking. Raises ProtocolError for other ones."""
        answer = await self._client.session.send_request(mcp_types.ListToolsRequest(), _ListResult)
        found = key_of_listing(answer.tools)
        if found != tools_key:
            raise ProtocolError(self._say("list", f"it claims the key {tools_key} for a tool list with {found}"))
        return [mcp_types.Tool.model_validate(tool, by_name=False) for tool in answer.tools]

    async def call(self, call: ToolCall, arguments: Mapping[str, Json], *, timeout_s: float) -> ToolResult:
        """The tool's answer. A tool that fails or times out is a result with ``is_error``.

        Raises ServerDied, ServerTimeout or ProtocolError if the server itself is lost; ServerExhausted if the call did
        that, by taking more than its sandbox gives, or too long at a server that declares its state; Undigestible if
        the call left a declared state that cannot be told.
        """
        started = time.perf_counter()
        self._told = self._brought = None
        try:
            async with self.boundary(f"tool '{call.name}'", timeout_s + 2 * PING_TIMEOUT_S):
                content, is_error = await self._call(call.name, arguments, timeout_s)
        except ServerTimeout as error:
            if self.spec.state != "declared":
                raise
            why = f"did not end within {timeout_s:g} s"
            raise ServerExhausted(self._say(f"tool '{call.name}'", why)) from error
        except ServerDied as error:
            if self._process.limit_hit() is None:
                raise
            raise ServerExhausted(str(error)) from error
        if self.spec.state == "opaque":
            self._log.update(canonical_json([call.name, arguments]).encode("utf-8", "surrogatepass"))
        return ToolResult(
            call_id=call.id,
            content=content,
            is_error=is_error,
            seconds=time.perf_counter() - started,
            bytes=len(content.encode("utf-8", "surrogatepass")),
        )

    async def _call(self, name: str, arguments: Mapping[str, Json], timeout_s: float) -> tuple[str, bool]:
        try:
            result = await self._ask(name, dict(arguments), timeout_s)
        except MCPError as error:
            if self.spec.state == "declared" and error.code == STATE_UNAVAILABLE:
                raise  # the result is lost with the state
            # The SDK's codes for a closed connection and a slow answer are codes that servers use, too. Either way it
            # is the tool's failure, provided that the server still answers.
            if error.code in (mcp_types.CONNECTION_CLOSED, mcp_types.REQUEST_TIMEOUT):
                request = self._client.session.send_request(mcp_types.ListToolsRequest(), mcp_types.ListToolsResult)
                await _within(PING_TIMEOUT_S, request)
            await self._learn_key()
            if error.code != mcp_types.REQUEST_TIMEOUT:
                return self._shown(error.message), True
            return f"tool '{name}' did not answer within {timeout_s:g} s", True
        except (ValidationError, RuntimeError) as error:
            # The SDK refuses what is no result at all: a broken tool, not a dead one.
            await self._learn_key()
            return f"tool '{name}' gave an invalid result: {plain_text(str(error)).splitlines()[0]}", True
        if self.spec.state == "declared":
            key = (result.meta or {}).get(STATE_KEY)
            if not isinstance(key, str):
                raise ProtocolError(self._say(f"tool '{name}'", f"its result has no {STATE_KEY}"))
            self._known_key = key
            if result.meta and RESULT_STATE_KEY in result.meta:
                self._brought = self._proven(f"tool '{name}'", result.meta[RESULT_STATE_KEY], key)
        return self._shown(_text(result.content)), bool(result.is_error)

    def _shown(self, said: str) -> str:
        """The text of an answer without escape sequences, and no more of it than is kept."""
        cut = len(said) - MAX_TEXT_CHARS
        with self._violation.share.charged():
            kept = plain_text(said[:MAX_TEXT_CHARS])
        return f"{kept}\n[cut: {cut} more characters]" if cut > 0 else kept

    async def _ask(self, name: str, arguments: dict[str, Json], timeout_s: float) -> mcp_types.CallToolResult:
        if self.spec.state != "declared":
            return await _within(timeout_s, self._client.call_tool(name, arguments))
        # The native runtime checks results itself; the SDK's client would list the tools anew to check them once more.
        meta = {TIMEOUT_KEY: OWN_SHARE * timeout_s, STATE_WITHIN_KEY: BROUGHT_CHARACTERS}
        params = {"name": name, "arguments": arguments, "_meta": meta}
        request = mcp_types.CallToolRequest(params=mcp_types.CallToolRequestParams.model_validate(params))
        return await _within(timeout_s, self._client.session.send_request(request, mcp_types.CallToolResult))

    async def _learn_key(self) -> None:
        """After an answer without a key: what the declared state is now."""
        if self.spec.state == "declared":
            self._known_key = (await self._harness_request("gymcp/state", {}, _StateResult)).stateKey

    async def confirm(self) -> None:
        """Looks at the state itself if a key or a time only says that nothing has changed.

        A declared state that was not fetched since the last call is compared with its key: raises ProtocolError. Files
        that were written to in this episode are read again, whatever their times say: the key may be another then.
        """
        if self.digester is not None:
            self._known_key = await self.digester.key(read_again=True)
        elif self.spec.state == "declared" and self._told is None:
            await self._fetch()

    async def state(self) -> tuple[str, Json]:
        """(content address, the state as it is recorded). Raises EnvInfraError; only for servers that tell theirs.

        Raises ProtocolError where a declared state does not have the key that the server has claimed for it.
        """
        if self.digester is not None:
            self._known_key, state = await self.digester.state(self._known_key)
            return self._known_key, state
        return self._told or self._brought or await self._fetch()

    async def _fetch(self) -> tuple[str, Json]:
        try:
            async with self.boundary("gymcp/state", self.spec.start_timeout_s):
                answer = await self._harness_request("gymcp/state", {}, _StateResult)
        except (ServerTimeout, ServerDied) as error:
            if isinstance(error, ServerDied) and self._process.limit_hit() is None:
                raise
            raise ServerExhausted(str(error)) from error
        self._told = self._proven("gymcp/state", answer.state, self._known_key, answer.stateKey)
        return self._told

    def _proven(self, doing: str, state: Json, *claims: str) -> tuple[str, Json]:
        """The state with its address. Raises ProtocolError where it is not what the keys claim."""
        try:
            with self._violation.share.charged():
                found, chars = digest_and_chars(state)
        except (ValueError, RecursionError) as error:  # such as NaN: the native runtime says so itself
            raise ProtocolError(self._say(doing, f"its state is not JSON: {error}")) from error
        for claimed in claims:
            if claimed != found:
                raise ProtocolError(self._say(doing, f"it claims the key {claimed} for a state with {found}"))
        self._told_chars += chars
        if self._told_chars > MAX_STATES_CHARS:
            why = f"its states have more than {MAX_STATES_CHARS} characters together"
            raise ServerExhausted(self._say(doing, why))
        return found, state

    async def _harness_request(self, method: str, params: dict[str, Json], result: type[ResultT]) -> ResultT:
        request = mcp_types.Request[dict[str, Any], str](method=method, params=params)
        return await self._client.session.send_request(request, result)

    @contextlib.asynccontextmanager
    async def boundary(self, doing: str, timeout_s: float) -> AsyncIterator[None]:
        """The SDK has many errors for a lost server; to us they are one boundary, with four names."""
        try:
            async with Deadline(timeout_s):
                yield
        except TimeoutError as error:
            raise ServerTimeout(self._say(doing, f"no answer within {timeout_s:g} s")) from error
        except (MCPError, OSError, ValidationError, RuntimeError, BaseExceptionGroup) as error:
            raise await self._translated(doing, _innermost(error)) from error

    async def _translated(self, doing: str, error: BaseException) -> BaseException:
        match error:
            case MCPError(code=mcp_types.REQUEST_TIMEOUT):
                return ServerTimeout(self._say(doing, "hung: it no longer answers"))
            case MCPError(code=mcp_types.CONNECTION_CLOSED) | OSError():
                return await self._lost(doing, error)
            case MCPError(code=code) if code == TOO_LARGE:
                is_state = self.spec.state == "declared" and doing not in _OPENING  # which is what the agent made of it
                return (ServerExhausted if is_state else ProtocolError)(self._say(doing, error.message))
            case MCPError(code=code) if code == STATE_UNAVAILABLE and self.spec.state == "declared":
                return Undigestible(self._say(doing, error.message))
            case MCPError():
                return EnvInfraError(self._say(doing, error.message))
            case ValidationError():
                first = error.errors()[0]
                return ProtocolError(self._say(doing, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))
            case RuntimeError():
                return ProtocolError(self._say(doing, str(error).splitlines()[0]))
            case _:
                return error

    async def _lost(self, doing: str, error: BaseException) -> EnvInfraError:
        if self._violation.text:
            await self._process.drain_stderr()
        if self._violation.text and self._process.limit_hit() is None:  # else it was ended in the middle of a line
            return self._violation.error(self._say(doing, self._violation.text))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._process.wait()
        if doing == "handshake" and self._process.returncode is not None:
            doing = "start"
        status = self._process.returncode
        ended = f"the server ended (exit status {status})" if status is not None else "it hung up, and did not end"
        why = self._process.limit_hit() or ended
        return ServerDied(self._say(doing, why))

    def _say(self, doing: str, why: str) -> str:
        tail = plain_text(self._process.stderr_tail()).strip()
        said = f"server '{self.spec.name}': {doing}: {plain_text(why)}"
        if self.redaction is not None:
            tail, said = self.redaction.text(tail), self.redaction.text(said)
        return said + (f"; its last words: {tail[-500:]}" if tail else "")


async def _within(seconds: float, answer: Awaitable[AnswerT]) -> AnswerT:
    """The answer, or the SDK's error for none in time; the SDK's own clock blames the server for a late loop."""
    try:
        async with Deadline(seconds):
            return await answer
    except TimeoutError:
        raise MCPError(code=mcp_types.REQUEST_TIMEOUT, message="no answer in time") from None


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _text(content: list[Any]) -> str:
    """The texts of a result; anything else is named, so that the agent knows it was there."""
    texts = (block.text if isinstance(block, mcp_types.TextContent) else f"[{block.type} content]" for block in content)
    return "\n".join(texts)
