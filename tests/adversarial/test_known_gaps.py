"""Gaps that docs/security.md says are not fixed, tried as it says: once one fails here, the page has to change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest
from captive import Captive

from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.types import ToolCall

MESSAGE = 0b10110100
LOCK = "import fcntl\nkept['file'] = open({path!r}); fcntl.flock(kept['file'], fcntl.LOCK_EX)"
RELEASE = "kept.pop('file').close()"
LOOK = """
import fcntl
with open({path!r}) as file:
    out = attempt(lambda: fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB))
"""
SHARED: dict[Literal["exec", "fork"], str] = {"exec": "/usr/bin/env", "fork": "/usr/bin/id"}
"""Start path -> a file of the host: another one for each, because tests may run at the same time."""
OWN = "/tmp/own"


async def run(session: ToolSession, code: str) -> str:
    result = await session.call_tool(ToolCall(id="", name="run", arguments={}), {"code": code}, timeout_s=20)
    assert not result.is_error, result.content
    return result.content


def pass_bits(bwrap: Bubblewrap, start: Literal["exec", "fork"], path: str) -> int:
    """Learn the message of one server in another, by locks on the file."""

    async def episodes() -> int:
        spec, heard = native_server("captive", Captive, start=start), 0
        async with (
            open_warm_sandbox(bwrap) as warm,
            open_session(spec, warm, initial_state=None, seed=0) as one,
            open_session(spec, warm, initial_state=None, seed=0) as other,
        ):
            for session in (one, other):
                await run(session, f"open({OWN!r}, 'w').close()")
            for bit in range(8):
                if MESSAGE >> bit & 1:
                    await run(one, LOCK.format(path=path))
                heard |= ("WORKED" not in await run(other, LOOK.format(path=path))) << bit
                if MESSAGE >> bit & 1:
                    await run(one, RELEASE)
        return heard

    return asyncio.run(episodes())


@pytest.mark.parametrize("start", SHARED)
def test_two_servers_pass_bits_by_locks_on_a_file_that_both_see(
    bwrap: Bubblewrap, start: Literal["exec", "fork"]
) -> None:
    assert pass_bits(bwrap, start, SHARED[start]) == MESSAGE


@pytest.mark.parametrize("start", SHARED)
def test_no_bit_passes_by_locks_on_files_of_their_own(bwrap: Bubblewrap, start: Literal["exec", "fork"]) -> None:
    """The control: each has a file of that name."""
    assert pass_bits(bwrap, start, OWN) == 0


@pytest.mark.parametrize(("start", "shown"), [("exec", True), ("fork", False)])
def test_a_started_server_reads_how_long_the_machine_has_run(
    bwrap: Bubblewrap, start: Literal["exec", "fork"], shown: bool
) -> None:
    async def episode() -> str:
        spec = native_server("captive", Captive, start=start)
        async with open_warm_sandbox(bwrap) as warm, open_session(spec, warm, initial_state=None, seed=0) as session:
            return await run(session, "out = attempt(lambda: float(open('/proc/uptime').read().split()[0]))")

    before = float(Path("/proc/uptime").read_text().split()[0])
    said = asyncio.run(episode())
    if shown:
        assert float(said.removeprefix("WORKED ")) >= before
    else:
        assert said == "No such file or directory"


def test_the_page_lists_what_is_tried_here() -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    listed = text.partition("## Not fixed")[2].partition("\n## ")[0]
    for words in ("pass bits by locks on shared files", "reads uptime, load, CPU model and memory in /proc"):
        assert words in listed
