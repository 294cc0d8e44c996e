"""Gaps that docs/security.md says are not fixed, tried as it says: once one fails here, the page has to change."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from captive import Captive
from sandbox_runs import sandbox_of

from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import PROGRAM, native_server
from gymcp.mcp_servers.sandbox import Launch
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.proctree import proportional_bytes
from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.mcp_servers.sandbox.watchdog import watchdog
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.snapshots.process_fork import fork_session
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
ROOMY = Limits(memory_mb=400)


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


KEEPS_WIRES = """
import sys
wire = sys.modules["__main__"].Wire
branch, kept["wires"] = wire.branch, []
def keep(self, fds):
    own = os.getpid()
    copied = os.dup(fds[0])
    branch(self, fds)
    if os.getpid() == own: kept["wires"].append(copied)
    else: os.close(copied)
wire.branch = keep
"""
FORGE = """
import json
answer = {"content": [{"type": "text", "text": "FORGED"}], "isError": False, "resultType": "complete"}
lines = "".join(json.dumps({"jsonrpc": "2.0", "id": n, "result": answer}) + "\\n" for n in range(200)).encode()
for wire in kept.get("wires", []): os.write(wire, lines)
"""
WAIT = "signal.alarm(20); signal.pause()"


@pytest.mark.parametrize("hostile", [True, False])
def test_a_hostile_server_answers_in_the_name_of_its_copy(bwrap: Bubblewrap, hostile: bool) -> None:
    """The copy itself never answers. The control keeps no wire of its copy, and the copy answers."""

    async def episode() -> str:
        spec = replace(native_server("captive", Captive, start="fork"), state="stateless")
        async with open_warm_sandbox(bwrap) as warm, open_session(spec, warm, initial_state=None, seed=0) as origin:
            await run(origin, KEEPS_WIRES if hostile else "")
            (copy,) = await fork_session(origin, 1)
            async with copy.open() as branch:
                answer = asyncio.create_task(run(branch, WAIT if hostile else "out = 'its own'"))
                while not answer.done():
                    await run(origin, FORGE)
                return await answer

    assert asyncio.run(episode()) == ("FORGED" if hostile else "its own")


@pytest.mark.parametrize("start", SHARED)
def test_the_mount_table_of_a_server_tells_where_its_program_lies(
    bwrap: Bubblewrap, start: Literal["exec", "fork"]
) -> None:
    """The control: the place of a program that is not mounted is not told."""
    spec = native_server("captive", Captive, start=start)
    (place,) = [mount.source for mount in spec.mounts if mount.target == PROGRAM]

    async def episode() -> str:
        async with open_warm_sandbox(bwrap) as warm, open_session(spec, warm, initial_state=None, seed=0) as session:
            return await run(session, "out = attempt(lambda: open('/proc/self/mountinfo').read())")

    table = asyncio.run(episode())
    assert f"/{place.name} {PROGRAM} " in table
    assert str(Path(__file__).parent) not in table


HOLDS_SOCKETS = """
import contextlib, socket
kept, held = [], 0
while held < {held}:
    kept += socket.socketpair()
    for each in kept[-2:]:
        each.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True: held += each.send(bytes(32_768))
"""
HOLDS_HEAP = "kept = b'x' * {held}"
HELD_BYTES = 100_000_000


@pytest.mark.parametrize(("code", "counted"), [(HOLDS_SOCKETS, False), (HOLDS_HEAP, True)], ids=["sockets", "heap"])
def test_without_a_cgroup_memory_in_sockets_is_not_counted(code: str, counted: bool) -> None:
    """The control holds as much in its heap. One socket holds at most the 230 kB that security.md names."""
    held = "\nprint(len(kept), flush=True); input()"
    launch = Launch(argv=("python3", "-I", "-S", "-c", code.format(held=HELD_BYTES) + held), limits=ROOMY)

    async def look() -> tuple[int, int]:
        async with sandbox_of("bwrap-watchdog").start(launch) as process:
            parts = int(await process.stdout.readline())
            return parts, proportional_bytes(watchdog().tree(process.pid))

    parts, seen_bytes = asyncio.run(look())
    assert (seen_bytes > HELD_BYTES) is counted
    if not counted:
        assert HELD_BYTES / parts <= 230_000


def test_the_page_lists_what_is_tried_here() -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    listed = text.partition("## Not fixed")[2].partition("\n## ")[0]
    for words in (
        "pass bits by locks on shared files",
        "reads uptime, load, CPU model and memory in /proc",
        "answers in the name of its copies",
        "its mount table tells where its files come from",
        "what the kernel keeps for a process is not counted: buffers of sockets",
    ):
        assert words in listed
