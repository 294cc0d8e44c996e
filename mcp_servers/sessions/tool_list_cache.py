"""What servers list, known without starting them: kept in gymcp's cache under what a list depends on.

A session compares what its server lists with the hash of what was expected, so a list that is out of date costs an
error and is then forgotten, never a wrong tool.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path

from gymcp.aio import keyed_lock
from gymcp.atomic import write_atomically
from gymcp.cache import in_cache
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.sandbox import Sandbox, interpreter
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.tools.hashes import hash_of_tools, hash_tools
from gymcp.mcp_servers.tools.validation import fault_of_tools
from gymcp.paths import gymcp_home
from gymcp.types import Tool

AT_ONCE = 4
"""Servers that are started at a time to be listed."""
_known: dict[Path, tuple[Tool, ...]] = {}


async def lists_of(servers: Sequence[ServerSpec], sandbox: Sandbox) -> dict[str, tuple[Tool, ...]]:
    """The tools of each server by its name; one whose list is not known is started once, and ended again.

    Raises EnvInfraError where a server does not start, IntegrityError where it has other tools than it is locked with.
    """
    found = {server.name: tools for server in servers if (tools := known_tools(server)) is not None}
    turns = asyncio.Semaphore(AT_ONCE)

    async def learn(server: ServerSpec) -> None:
        async with keyed_lock(str(_place(server))), turns:
            if (tools := known_tools(server)) is None:
                async with open_session(server, sandbox, initial_state=server.initial_state, seed=0) as session:
                    tools = session.tools
                keep_tools(server, tools)
            found[server.name] = tools

    await _all([learn(server) for server in servers if server.name not in found])
    return {server.name: found[server.name] for server in servers}


def known_tools(server: ServerSpec) -> tuple[Tool, ...] | None:
    """What it listed when it was last started; None where that is not known, or not what it is locked with."""
    place = _place(server)
    if place not in _known:
        with in_cache():
            tools = _read(place)
        if tools is None or server.tools_sha256 not in (None, tools_hash(tools)):
            return None
        _known[place] = tools
    return _known[place]


def keep_tools(server: ServerSpec, tools: tuple[Tool, ...]) -> None:
    """For the next who asks, in this process or another one."""
    place = _place(server)
    rows = [
        {"name": t.name, "description": t.description, "input_schema": t.input_schema, "annotations": t.annotations}
        for t in tools
    ]
    with in_cache():
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps({"sha256": tools_hash(tools), "tools": rows}).encode())
    _known[place] = tools


def forget_tools(server: ServerSpec) -> None:
    """Another list than the known one has come."""
    place = _place(server)
    _known.pop(place, None)
    with in_cache():
        place.unlink(missing_ok=True)


def tools_hash(tools: Sequence[Tool]) -> str:
    """One hash over names, descriptions, schemas and annotations, whatever the order."""
    return hash_of_tools(hash_tools(tools))


def _place(server: ServerSpec) -> Path:
    of = [server.parts(), server.initial_state, server.tools_sha256, server.url, interpreter().version]
    return gymcp_home() / "tool-lists" / f"{digest(of)[:32]}.json"


def _read(place: Path) -> tuple[Tool, ...] | None:
    """None where there is no file, or one that is not what was written."""
    try:
        row = json.loads(place.read_bytes())
        tools = tuple(Tool(**fields) for fields in row["tools"])
        sha256 = row["sha256"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None
    whole = all(isinstance(t.name, str) and isinstance(t.input_schema, Mapping) for t in tools)
    return tools if whole and tools_hash(tools) == sha256 and fault_of_tools(tools) is None else None


async def _all(work: Sequence[Coroutine[None, None, None]]) -> None:
    """Runs all to their end, whatever one raises; then raises the first error."""
    for error in await asyncio.gather(*work, return_exceptions=True):
        if error is not None:
            raise error
