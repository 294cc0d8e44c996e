"""A forked server can do nothing to its template, its siblings and its copies: tried from inside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import script_sessions
from captive import Captive
from equipment import require_cgroup
from script_sessions import Make, make

from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox, open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.cgroup import Cgroup
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.snapshots.process_fork import fork_session
from gymcp.types import ToolCall

__all__ = ["make"]  # the fixture

SPEC = native_server("captive", Captive, start="fork")
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
REFUSED = "Operation not permitted"


@contextlib.asynccontextmanager
async def captive(warm: WarmSandbox) -> AsyncIterator[ToolSession]:
    async with open_session(SPEC, warm, initial_state=None, seed=0) as session:
        assert isinstance(session.process, ForkedProcess)
        yield session


@contextlib.asynccontextmanager
async def warm_bwrap(bwrap: Bubblewrap) -> AsyncIterator[WarmSandbox]:
    async with open_warm_sandbox(bwrap) as warm:
        assert isinstance(warm, WarmSandbox)
        yield warm


async def run(session: ToolSession, code: str) -> str:
    result = await session.call_tool(ToolCall(id="", name="run", arguments={}), {"code": code}, timeout_s=20)
    assert not result.is_error, result.content
    return result.content


def inside(bwrap: Bubblewrap, code: str) -> str:
    async def episode() -> str:
        async with warm_bwrap(bwrap) as warm, captive(warm) as session:
            return await run(session, code)

    return asyncio.run(episode())


def namespaces(pid: int) -> frozenset[str]:
    """Empty for a process that has ended: what started a server or a copy may still be on its way out."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return frozenset(str(Path(f"/proc/{pid}/ns/{name}").readlink()) for name in NAMESPACES)
    return frozenset()


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in descendants(child)]


def test_forked_server_has_no_capability_and_a_filter(bwrap: Bubblewrap) -> None:
    code = "out = [l for l in open('/proc/self/status').read().splitlines() if l[:3] in ('Cap', 'NoN', 'Uid')]"
    none = [f"Cap{kind}:\\t{'0' * 16}" for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")]
    said = inside(bwrap, code)
    assert said == "['Uid:\\t65534\\t65534\\t65534\\t65534', " + ", ".join(f"'{line}'" for line in none) + (
        ", 'NoNewPrivs:\\t1']"
    )
    assert inside(bwrap, "out = 'Seccomp:\\t2' in open('/proc/self/status').read()") == "True"


def test_every_forked_server_has_namespaces_of_its_own(bwrap: Bubblewrap) -> None:
    async def episodes() -> Counter[frozenset[str]]:
        async with warm_bwrap(bwrap) as warm, captive(warm) as one:
            copies = await fork_session(one, 2)
            async with captive(warm):  # the template makes it when those that made the copies' cells have ended
                everyone = [os.getpid(), *descendants(warm.fork_servers[0].process.pid)]
                found = Counter(filter(None, map(namespaces, everyone)))
            for copy in copies:
                await copy.discard()
            return found

    found = asyncio.run(episodes())
    uses = Counter(namespace for together in found for namespace in together)
    alone = [count for together, count in found.items() if all(uses[namespace] == 1 for namespace in together)]
    assert sorted(alone) == [1, 2, 2, 2, 2]  # the harness, two servers and two copies, each with its first process


def test_template_and_siblings_are_invisible_and_cannot_be_signalled(bwrap: Bubblewrap) -> None:
    async def episodes() -> tuple[str, str, str]:
        async with warm_bwrap(bwrap) as warm, captive(warm) as one, captive(warm) as other:
            seen = await run(one, "out = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())")
            code = "out = {attempt(lambda: os.kill(pid, signal.SIGKILL)) for pid in [-1, 0, 1, *range(3, 3000)]}"
            return seen, await run(one, code), await run(other, "out = 'alive'")

    assert asyncio.run(episodes()) == ("[1, 2]", f"{{'{REFUSED}'}}", "alive")


def test_first_process_cannot_be_read_or_traced(bwrap: Bubblewrap) -> None:
    code = (
        "out = [attempt(lambda: open('/proc/1/mem', 'rb')), attempt(lambda: os.readlink('/proc/1/exe')),\n"
        "  attempt(lambda: open('/proc/1/maps').read()), attempt(lambda: open('/proc/1/environ').read()),\n"
        "  libc.ptrace(16, 1, 0, 0), libc.process_vm_readv(1, 0, 0, 0, 0, 0),\n"
        "  attempt(lambda: os.listdir('/proc/1/root'))]"
    )
    denied = "Permission denied"
    assert inside(bwrap, code) == str([*[denied] * 4, -1, -1, denied])


def test_namespaces_and_mounts_cannot_be_changed(bwrap: Bubblewrap) -> None:
    code = (
        "def errno(result): return os.strerror(ctypes.get_errno()) if result < 0 else 'WORKED'\n"
        "own = [os.open(f'/proc/self/ns/{name}', os.O_RDONLY) for name in ('user', 'mnt', 'pid', 'net')]\n"
        "out = {errno(libc.unshare(0x10000000)), errno(libc.unshare(0x20000)), errno(libc.umount2(b'/.proc', 2)),\n"
        "  errno(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)), errno(libc.pivot_root(b'/', b'/tmp')),\n"
        "  *(errno(libc.setns(fd, 0)) for fd in own[1:])}\n"
        "out = out, errno(libc.setns(own[0], 0))"
    )
    assert inside(bwrap, code) == f"({{'{REFUSED}'}}, 'Invalid argument')"


def test_spawners_proc_and_host_are_covered(bwrap: Bubblewrap) -> None:
    code = (
        "out = [os.listdir('/.proc'), attempt(lambda: open('/.proc/sys/kernel/core_pattern')),\n"
        "  attempt(lambda: open('/.proc/x', 'w')), os.path.exists('/proc/sys'), attempt(lambda: open('/x', 'w'))]"
    )
    missing, read_only = "No such file or directory", "Read-only file system"
    assert inside(bwrap, code) == str([[], missing, read_only, False, read_only])


def test_descriptors_are_the_servers_own(bwrap: Bubblewrap) -> None:
    code = (
        "found = {fd: os.readlink(f'/proc/self/fd/{fd}').split(':')[0] for fd in os.listdir('/proc/self/fd')\n"
        "  if os.path.lexists(f'/proc/self/fd/{fd}')}\n"
        "out = sorted(found.items())"
    )
    kinds = [("0", "/dev/null"), ("1", "pipe"), ("2", "pipe"), ("3", "socket"), ("4", "socket"), ("5", "pipe")]
    assert inside(bwrap, code) == str(kinds)


def test_siblings_cannot_meet_by_abstract_sockets_or_shared_memory(bwrap: Bubblewrap) -> None:
    async def episodes() -> tuple[str, str]:
        async with warm_bwrap(bwrap) as warm, captive(warm) as one, captive(warm) as other:
            await run(
                one,
                "kept['s'] = socket.socket(socket.AF_UNIX); kept['s'].bind('\\0meet'); kept['s'].listen()\n"
                "libc.shmget(77, 4096, 0o1666); open('/dev/shm/meet', 'w').close()",
            )
            meet = "socket.socket(socket.AF_UNIX).connect('\\0meet')"
            shared = await run(other, "out = libc.shmget(77, 4096, 0), os.path.exists('/dev/shm/meet')")
            return await run(other, f"out = attempt(lambda: {meet})"), shared

    assert asyncio.run(episodes()) == ("Connection refused", "(-1, False)")


def test_origin_sees_its_copies_but_cannot_touch_them(bwrap: Bubblewrap) -> None:
    """They live in its PID namespace, because a process can only enter those below its own."""

    async def tree() -> tuple[str, str]:
        async with warm_bwrap(bwrap) as warm, captive(warm) as origin:
            (copy,) = await fork_session(origin, 1)
            async with copy.open() as branch:
                touch = (
                    "others = [int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) > 2]\n"
                    "def living(pid):\n"
                    "    try: return open(f'/proc/{pid}/stat').read().split()[2] != 'Z'\n"
                    "    except OSError: return False\n"  # the maker of the copy's namespaces has just ended
                    "others = [pid for pid in others if living(pid)]\n"
                    "out = len(others) > 1, {attempt(act) for pid in others for act in (\n"
                    "  lambda: os.kill(pid, signal.SIGKILL), lambda: open(f'/proc/{pid}/mem', 'rb+'),\n"
                    "  lambda: os.readlink(f'/proc/{pid}/ns/user'), lambda: os.listdir(f'/proc/{pid}/root/'),\n"
                    "  lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL))}"
                )
                limits = "(lambda: resource.prlimit(3, resource.RLIMIT_CPU, (1, 1)))"
                return await run(origin, touch), await run(
                    branch,
                    "import resource\n"
                    f"out = sorted(int(name) for name in os.listdir('/proc') if name.isdigit()), attempt({limits})",
                )

    touched, seen = asyncio.run(tree())
    assert touched.startswith("(True, {")
    assert "WORKED" not in touched
    assert seen == f"([1, 2], '{REFUSED}')"


TAKES_OVER = """
import json, sys
wire = sys.modules["__main__"].Wire
branch = wire.branch
def first_join_all(self, fds):
    try:
        names = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in fds}
        kept["groups"] = [name for name in names.values() if "cgroup.procs" in name]
        for fd in fds:
            if not names[fd].startswith("socket:"):  # what is written there the harness takes for answers
                try: os.write(fd, b"0")
                except OSError: pass
    finally:
        branch(self, fds)
wire.branch = first_join_all
out = "ready"
"""


def enter(cgroup: Cgroup) -> bool:
    """True if a process that has the files of the cgroup moves itself there."""
    code = 'for file; do echo 0 > "$file" || exit; done; echo moved; read _'
    argv = ["sh", "-c", code, "sh", *cgroup.join_files]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = process.pid in cgroup.processes()
        process.communicate("\n")
    return found


def test_a_copys_control_group_is_not_its_origins_to_enter(bwrap: Bubblewrap) -> None:
    """The origin gets no file of it. Control: a process that has the files enters."""
    require_cgroup()

    async def episodes() -> tuple[str, list[bool], list[bool], list[bool]]:
        async with warm_bwrap(bwrap) as warm, captive(warm) as one:
            await run(one, TAKES_OVER)
            copies = await fork_session(one, 2)
            got = await run(one, "out = kept['groups']")
            origin = one.process
            assert isinstance(origin, ForkedProcess)
            assert origin.cgroup is not None
            live = [copy for copy in warm.fork_servers[0]._copies if copy.cgroup is not None]
            places = [namespace_of(copy.pid) for copy in live]
            of_origin = [namespace_of(pid) in places for pid in origin.cgroup.processes()]
            of_copies = [
                bool(found) and all(namespace_of(pid) == place for pid in found)
                for copy, place in zip(live, places, strict=True)
                if copy.cgroup is not None and (found := copy.cgroup.processes()) is not None
            ]
            entered = [enter(copy.cgroup) for copy in live if copy.cgroup is not None]
            for copy in copies:
                await copy.discard()
            return got, of_origin, of_copies, entered

    got, of_origin, of_copies, entered = asyncio.run(episodes())
    assert (got, entered) == ("[]", [True, True])
    assert of_origin
    assert not any(of_origin)
    assert of_copies == [True, True]


SHARES_LATER = """
import mmap, os
forks, counted = [], []
def share():
    forks.append(1)
    if len(forks) == FORK: counted.append(mmap.mmap(-1, 4096))
os.register_at_fork(before=share)
def begin(): pass
def count():
    if not counted: return 0
    counted[0][0] += 1
    return counted[0][0]
"""
"""Module that maps shared memory after every check of its import: in the fork server, right before a fork."""


@pytest.mark.parametrize("fork", [1, 2, 3])
def test_memory_that_an_import_shares_when_it_is_forked_reaches_no_episode(
    bwrap: Bubblewrap, make: Make, fork: int
) -> None:
    """The first fork is the rehearsal, the second the first episode. Process 1 of a sandbox forks its own server, too,
    so one of the programs shares memory within an episode."""

    async def episodes() -> tuple[list[str], list[bool]]:
        said, forked = [], []
        async with warm_bwrap(bwrap) as warm:
            for _ in range(3):
                async with script_sessions.session(warm, make(SHARES_LATER.replace("FORK", str(fork)))) as opened:
                    said.append(await script_sessions.run(opened, "out = extra.count()"))
                    forked.append(script_sessions.is_forked(opened))
            (why,) = warm.refused.values()
            assert why == "the program shares memory (/dev/zero (deleted)) when it is forked"
        return said, forked

    said, forked = asyncio.run(episodes())
    assert "2" not in said
    assert forked == [number < fork - 1 for number in range(1, 4)]


def test_control_memory_mapped_before_a_fork_would_be_shared() -> None:
    count = "for _ in range(2):\n    if os.fork() == 0: print(count(), flush=True); os._exit(0)\n    os.wait()"
    code = SHARES_LATER.replace("FORK", "1") + count
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["1", "2"]


def namespace_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""
