"""Gaps that docs/security.md says are not fixed, tried as it says: once one fails here, the page has to change."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from captive import Captive
from sandbox_runs import sandbox_of
from script_sessions import Make, make, session
from script_sessions import run as run_script

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.forkserver import client
from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox, open_warm_sandbox
from gymcp.mcp_servers.native.server import PROGRAM, native_server
from gymcp.mcp_servers.sandbox import Launch
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.proctree import proportional_bytes, read_processes
from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.mcp_servers.sandbox.watchdog import watchdog
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.snapshots.process_fork import fork_session
from gymcp.types import ToolCall

__all__ = ["make"]  # the fixture

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


TAKES_PIPES = """
for _ in range({processes}):
    ready, told = os.pipe()
    if os.fork() == 0:
        signal.alarm(60)
        attempt(lambda: [os.pipe() for _ in range(100_000)])
        os.write(told, b"all")
        signal.pause()
    os.close(told)
    os.read(ready, 3)
    os.close(ready)
"""
PIPE_BYTES = """
out, (reader, writer) = 0, os.pipe()
os.set_blocking(writer, False)
while attempt(lambda: os.write(writer, bytes(4096))).startswith("WORKED"): out += 4096
os.close(reader), os.close(writer)
"""


def test_processes_of_a_server_shrink_the_new_pipes_of_another(bwrap: Bubblewrap) -> None:
    """The controls: one process does not, and no longer do three once their server has ended."""
    spec = native_server("captive", Captive)

    async def episodes() -> list[str]:
        async with open_session(spec, bwrap, initial_state=None, seed=0) as other:
            said = []
            for processes in (1, 3):
                async with open_session(spec, bwrap, initial_state=None, seed=0) as one:
                    await run(one, TAKES_PIPES.format(processes=processes))
                    said.append(await run(other, PIPE_BYTES))
            return [*said, await run(other, PIPE_BYTES)]

    assert asyncio.run(episodes()) == ["65536", "8192", "65536"]


FORKS_AT_EACH_START = """
import os, signal, time
forks, busy = [], []
def act():
    forks.append(1)
    if busy or len(forks) < 3: return
    busy.append(1)
    if (child := os.fork()) == 0:
        signal.alarm(60)
        while time.process_time() < 0.6: pass
        END
    if WAITS: os.waitpid(child, 0)
    busy.clear()
def begin(): pass
if os.getpid() == 1: os.register_at_fork(after_in_parent=act)
"""
"""Begins after the check for processes that an import leaves running."""


@pytest.mark.parametrize("waits", [True, False])
def test_without_a_cgroup_short_processes_of_an_import_are_not_counted(
    make: Make, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Each start of a server costs 0.6 s of CPU time. In the control the process is not waited for, and goes on."""
    monkeypatch.setattr(client, "_MIN_CPU_S", 1.0)
    code = FORKS_AT_EACH_START.replace("END", "os._exit(0)" if waits else "signal.pause()").replace("WAITS", str(waits))
    spec = make(code, limits=Limits(cpu_s=1.0))

    async def episodes() -> tuple[str | None, float]:
        waited_s = 0.0
        async with open_warm_sandbox(sandbox_of("bwrap-watchdog")) as warm, contextlib.AsyncExitStack() as stack:
            assert isinstance(warm, WarmSandbox)
            await stack.enter_async_context(session(warm, spec))
            (fork_server,) = warm.fork_servers
            with contextlib.suppress(EnvInfraError):  # in the control the fork server may have been ended by now
                for _ in range(5):
                    waited_s = _longest_wait_s(fork_server.process.pid)
                    await stack.enter_async_context(session(warm, spec))  # meanwhile the watchdog looks, twice or more
            if not waits:
                async with asyncio.timeout(60):
                    await fork_server.gone.wait()
            return fork_server.process.exceeded_limit(), waited_s

    limit, waited_s = asyncio.run(episodes())
    if waits:
        assert (limit, waited_s > 2) == (None, True), waited_s
    else:
        assert str(limit).startswith("cpu: the process tree used more than 1.")


SHARES_BY_FORCE = """
import mmap, sys
if REWRITES: sys.modules["__main__"]._list_shared_maps = lambda proc: []
counted = mmap.mmap(-1, 4096)
def begin(): pass
def count():
    counted[0] += 1
    return counted[0]
"""


@pytest.mark.parametrize(("rewrites", "counts"), [(True, ["1", "2"]), (False, ["1", "1"])])
def test_an_import_that_rewrites_its_fork_server_has_its_episodes_share_memory(
    bwrap: Bubblewrap, make: Make, rewrites: bool, counts: list[str]
) -> None:
    """In the control the memory is found, and the servers are started."""

    async def episodes() -> list[str]:
        said = []
        async with open_warm_sandbox(bwrap) as warm:
            for _ in range(2):
                async with session(warm, make(SHARES_BY_FORCE.replace("REWRITES", str(rewrites)))) as opened:
                    said.append(await run_script(opened, "out = extra.count()"))
        return said

    assert asyncio.run(episodes()) == counts


def _longest_wait_s(pid: int) -> float:
    """Most CPU time of children that a process of this tree has waited for."""
    processes = read_processes()
    return max((processes[each].waited_cpu_s for each in watchdog().tree(pid) if each in processes), default=0.0)


def test_the_page_lists_what_is_tried_here() -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    listed = text.partition("## Not fixed")[2].partition("\n## ")[0]
    for words in (
        "pass bits by locks on shared files",
        "reads uptime, load, CPU model and memory in /proc",
        "answers in the name of its copies",
        "its mount table tells where its files come from",
        "what the kernel keeps for a process is not counted: buffers of sockets",
        "shrink the pipes of the user's other processes",
        "start and wait for short processes, without a cgroup",
        "rewrites the code of its fork server",
    ):
        assert words in listed
