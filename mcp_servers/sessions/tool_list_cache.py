"""Tool lists of servers in gymcp's cache, so that a server need not be started to be listed.

A list is stored under everything that it depends on. A session compares the server's list with the expected one, so an
outdated list costs one error and is then evicted; it never leads to a wrong tool.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path

from gymcp.aio import keyed_lock
from gymcp.atomic import cache_errors, write_atomically
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.sandbox import Sandbox, interpreter
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.tools.hashes import combine_hashes, hash_tools
from gymcp.mcp_servers.tools.validation import fault_of_tools
from gymcp.paths import gymcp_home
from gymcp.types import Tool

MAX_CONCURRENT_STARTS = 4
"""Servers that are started at a time to be listed."""
_known: dict[Path, tuple[Tool, ...]] = {}


async def load_tool_lists(servers: Sequence[ServerSpec], sandbox: Sandbox) -> dict[str, tuple[Tool, ...]]:
    """Tools of each server by its name. A server whose list is not stored is started once, and ended again.

    Raises EnvInfraError if a server does not start, IntegrityError if it has other tools than the locked ones.
    """
    lists = {server.name: tools for server in servers if (tools := find_stored_tools(server)) is not None}
    starts = asyncio.Semaphore(MAX_CONCURRENT_STARTS)

    async def list_once(server: ServerSpec) -> None:
        async with keyed_lock(str(_path(server))), starts:
            if (tools := find_stored_tools(server)) is None:
                async with open_session(server, sandbox, initial_state=server.initial_state, seed=0) as session:
                    tools = session.tools
                store_tools(server, tools)
            lists[server.name] = tools

    await _run_all([list_once(server) for server in servers if server.name not in lists])
    return {server.name: lists[server.name] for server in servers}


def find_stored_tools(server: ServerSpec) -> tuple[Tool, ...] | None:
    """Tools that the server listed at its last start; None if none are stored, or they are not the locked ones."""
    path = _path(server)
    if path not in _known:
        with cache_errors():
            tools = _read(path)
        if tools is None or server.tools_sha256 not in (None, hash_tool_list(tools)):
            return None
        _known[path] = tools
    return _known[path]


def store_tools(server: ServerSpec, tools: tuple[Tool, ...]) -> None:
    """Store the list for this process and later ones."""
    path = _path(server)
    rows = [
        {"name": t.name, "description": t.description, "input_schema": t.input_schema, "annotations": t.annotations}
        for t in tools
    ]
    with cache_errors():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"sha256": hash_tool_list(tools), "tools": rows}).encode())
    _known[path] = tools


def evict_tools(server: ServerSpec) -> None:
    """Remove the stored list, because the server now lists other tools."""
    path = _path(server)
    _known.pop(path, None)
    with cache_errors():
        path.unlink(missing_ok=True)


def hash_tool_list(tools: Sequence[Tool]) -> str:
    """One hash over names, descriptions, schemas and annotations. The order does not matter."""
    return combine_hashes(hash_tools(tools))


def _path(server: ServerSpec) -> Path:
    key = [server.parts(), server.initial_state, server.tools_sha256, server.url, interpreter().version]
    return gymcp_home() / "tool-lists" / f"{digest(key)[:32]}.json"


def _read(path: Path) -> tuple[Tool, ...] | None:
    """Tools from the file; None if it is missing or is not as it was written."""
    try:
        row = json.loads(path.read_bytes())
        tools = tuple(Tool(**fields) for fields in row["tools"])
        sha256 = row["sha256"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None
    whole = all(isinstance(t.name, str) and isinstance(t.input_schema, Mapping) for t in tools)
    return tools if whole and hash_tool_list(tools) == sha256 and fault_of_tools(tools) is None else None


async def _run_all(work: Sequence[Coroutine[None, None, None]]) -> None:
    """Run all of them to their end, even if one raises; then raise the first error."""
    for error in await asyncio.gather(*work, return_exceptions=True):
        if error is not None:
            raise error
