"""Try out the tools of a server that `gymcp new` locks: a call that works, and the files that the calls change."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from gymcp.agents.strategies.random_arguments import sample_instance
from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.packages.locked_server import make_spec
from gymcp.mcp_servers.packages.lockfile import LockedServer
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import FileState, ServerSpec, StateSource
from gymcp.types import Json, Tool, ToolCall

CALLS_PER_TOOL = 6
"""Most calls of one tool with random arguments, until one succeeds."""
CALL_TIMEOUT_S = 10.0
TRIAL_S = 60.0
"""Seconds after which no further tool is called, once a call has succeeded."""
_SQLITE, _SQLITE_BASE64 = "SQLite format 3", "U1FMaXRlIGZvcm1hdCAz"
"""Words with which every SQLite database begins."""
_SQLITE_NAMES = (".db", ".sqlite", ".sqlite3")
_ERROR = re.compile(r"\W*(\w+\W+){0,2}(error|exception|failed|invalid)\b", re.IGNORECASE)
"""Beginning of an answer that reports an error, though its server does not say that it is one."""
_BESIDE_SQLITE = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Tools of the server, and a call of one of them."""

    tools: tuple[Tool, ...]
    call: ToolCall
    succeeded: bool | None = None
    """None: the call was not made."""
    state: StateSource = "opaque"
    """State kind that fits the files that the calls changed."""


@dataclass(slots=True)
class _Found:
    call: ToolCall | None = None
    """Best call that succeeded, the first of equally good ones."""
    rank: int = -1
    """2: it changed files. 1: it did not. 0: its answer reads like an error."""


async def try_out(entry: LockedServer, backend: Sandbox) -> Trial:
    """Call each tool with random valid arguments until a call succeeds; read-only tools are called first.

    Nothing is called on a remote server, because effects there cannot be undone. Raises EnvInfraError if the server
    does not start.
    """
    if entry.runtime == "remote":
        async with open_session(make_spec(entry), backend, initial_state=None, seed=0) as session:
            return Trial(tools=session.tools, call=_first_call(session.tools))
    spec = make_spec(entry, state=FileState())
    start = await _read_start(spec, backend)
    found = _Found()
    async with open_session(spec, backend, initial_state=None, seed=0) as session:
        state: StateSource = "opaque"
        if session.world_key == start:  # else two fresh servers have different files, and no reset would be clean
            before = (await session.state())[1]
            await _call_tools(session, found)
            state = await _read_kind(session, before)
        else:
            await _call_tools(session, found)
        call = found.call or _first_call(session.tools)
        return Trial(tools=session.tools, call=call, succeeded=found.call is not None, state=state)


def describe_state(state: StateSource) -> str:
    """The state kind as Python code."""
    if not isinstance(state, FileState):
        return repr(state)
    parts = [f"kind={state.kind!r}"] if state.kind != "workspace" else []
    parts += [f"path={state.path!r}"] if state.path != "." else []
    return f"FileState({', '.join(parts)})".replace("'", '"')


async def _read_start(spec: ServerSpec, backend: Sandbox) -> str:
    """Key of the files that a fresh server starts with."""
    async with open_session(spec, backend, initial_state=None, seed=0) as session:
        return session.world_key


async def _call_tools(session: ToolSession, found: _Found) -> None:
    """Call the tools until time is up; the loss of the server ends it, if a call has succeeded before."""
    tools = sorted(session.tools, key=lambda tool: not tool.annotations.get("readOnlyHint", False))
    started, done = time.monotonic(), set[str]()
    for tool, arguments in generate_calls(tools):
        if tool.name in done or (found.call is not None and time.monotonic() > started + TRIAL_S):
            continue
        call = ToolCall(id="call_1", name=tool.name, arguments=arguments)
        key = session.world_key
        try:
            result = await session.call_tool(call, arguments, timeout_s=CALL_TIMEOUT_S)
            await session.update()
        except EnvInfraError:
            if found.call is None:
                raise
            return
        if result.is_error:
            continue
        rank = 2 if session.world_key != key else 0 if _ERROR.match(result.content) else 1
        if rank > 0:
            done.add(tool.name)
        if rank > found.rank:
            found.call, found.rank = call, rank


async def _read_kind(session: ToolSession, before: Json) -> StateSource:
    """State kind for the files that differ from `before`, or for all if none does, as of a database made at the start.

    It is opaque if there are no files, or if they cannot be read.
    """
    try:
        await session.update()
        after = (await session.state())[1]
    except EnvInfraError:
        return "opaque"
    old, new = before.get("files", {}), after.get("files", {})
    changed = {path: new.get(path) for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
    return state_kind(changed or new)


def state_kind(changed: Mapping[str, Json]) -> StateSource:
    """State kind that fits the server's files: path -> recorded file, None for one that is gone."""
    if not changed:
        return "opaque"
    git = {path.partition("/.git/")[0] for path in changed if "/.git/" in f"/{path}"}
    if len(git) == 1:
        root = next(iter(git))
        return FileState(kind="git", path="." if root.startswith(".git") else root)
    plain = [path for path in changed if not path.endswith(_BESIDE_SQLITE) and not _is_folder(changed[path])]
    if len(plain) == 1 and _is_sqlite(plain[0], changed[plain[0]]):
        return FileState(kind="sqlite", path=plain[0])
    return FileState()


def _is_folder(entry: Json) -> bool:
    return isinstance(entry, dict) and entry.get("kind") == "folder"


def _is_sqlite(path: str, entry: Json) -> bool:
    if not isinstance(entry, dict):
        return False
    if "sha256" in entry or entry.get("text") == "":  # too large for its content to be recorded, or no table yet
        return PurePosixPath(path).suffix in _SQLITE_NAMES
    return str(entry.get("text", "")).startswith(_SQLITE) or str(entry.get("base64", "")).startswith(_SQLITE_BASE64)


def _first_call(tools: tuple[Tool, ...]) -> ToolCall:
    tool, arguments = next(generate_calls(list(tools)))
    return ToolCall(id="call_1", name=tool.name, arguments=arguments)


def generate_calls(tools: list[Tool]) -> Iterator[tuple[Tool, dict[str, Json]]]:
    """Several calls of each tool with random valid arguments, always the same ones."""
    rng = random.Random(0)
    for tool in tools:
        for attempt in range(CALLS_PER_TOOL):
            schema = dict(tool.input_schema)
            if attempt == 0:  # required arguments only
                needed = set(schema.get("required", ()))
                schema["properties"] = {k: v for k, v in schema.get("properties", {}).items() if k in needed}
            yield tool, sample_instance(schema, rng, ["UTC", "12:00", "example"])
