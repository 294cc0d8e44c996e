"""Sessions with a server made with the official SDK, on every wire; it needs our virtualenv, so it runs unconfined."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from session_calls import call

from gymcp.errors import EnvInfraError, ServerDied
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import ServerSpec

SERVER = """
import asyncio, os
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("sdk", log_level="ERROR")
seen = []

@server.tool()
def note(text: str) -> str:
    "Remember a text."
    seen.append(text)
    return f"{len(seen)} notes"

@server.tool()
def fail() -> str:
    raise ToolError("no luck")

@server.tool()
async def slow() -> str:
    await asyncio.sleep(60)
    return "late"

@server.tool()
def die() -> str:
    print("going down", file=__import__("sys").stderr, flush=True)
    os._exit(3)

@server.tool()
async def ask(ctx: Context) -> str:
    answer = await ctx.session.list_roots()
    return str(answer)

@server.tool()
def picture() -> list:
    return [{"an": "object"}, 3]

server.run("stdio")
"""
WIRES = ("auto", "legacy", "2026-07-28")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return path


def inside(program: Path, wire: str, work: Callable[[ToolSession], Awaitable[None]]) -> None:
    argv = (sys.executable, str(program))
    spec = ServerSpec(name="sdk", argv=argv, wire=wire)  # type: ignore[arg-type]

    async def main() -> None:
        async with open_session(spec, get_sandbox("none"), initial_state=None, seed=0) as session:
            await work(session)

    asyncio.run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_tools_are_listed_called_and_fail_alike_on_every_wire(program: Path, wire: str) -> None:
    async def work(session: ToolSession) -> None:
        assert [tool.name for tool in session.tools] == ["note", "fail", "slow", "die", "ask", "picture"]
        assert session.tools[0].description == "Remember a text."
        noted = await call(session, "note", text="a")
        assert (noted.content, noted.is_error) == ("1 notes", False)
        failed = await call(session, "fail")
        assert (failed.is_error, "no luck" in failed.content) == (True, True)
        wrong = await call(session, "note", text=3)
        assert wrong.is_error
        unknown = await call(session, "nope")
        assert unknown.is_error

    inside(program, wire, work)


@pytest.mark.parametrize("wire", WIRES)
def test_a_slow_tool_is_an_observation_and_the_server_goes_on(program: Path, wire: str) -> None:
    async def work(session: ToolSession) -> None:
        late = await call(session, "slow", timeout_s=0.3)
        raises = "the limit of a call (to raise it: EpisodeLimits(call_timeout_s=...) of the environment)"
        assert (late.is_error, late.content) == (True, f"tool 'slow' did not answer within 0.3 s, {raises}")
        assert not (await call(session, "note", text="a")).is_error

    inside(program, wire, work)


@pytest.mark.parametrize("wire", WIRES)
def test_a_dead_server_is_named_with_its_exit_status_and_last_words(program: Path, wire: str) -> None:
    async def work(session: ToolSession) -> None:
        with pytest.raises(
            ServerDied, match=r"server 'sdk': tool 'die': the server ended \(exit status 3\).*going down"
        ):
            await call(session, "die")
        with pytest.raises(EnvInfraError):
            await call(session, "note", text="a")

    inside(program, wire, work)


def test_requests_of_a_server_to_the_client_are_refused(program: Path) -> None:
    async def work(session: ToolSession) -> None:
        assert (await call(session, "ask")).is_error

    inside(program, "legacy", work)


def test_the_key_of_an_opaque_server_is_the_log_of_its_calls(program: Path) -> None:
    async def work(session: ToolSession) -> None:
        first = session.world_key
        await call(session, "note", text="a")
        second = session.world_key
        await call(session, "note", text="a")
        assert len({first, second, session.world_key}) == 3

    inside(program, "auto", work)
