"""Imports of a fork server: what they make is private to each episode, what they leave running has limits."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from script_sessions import Make, is_forked, make, run, session

from gymcp.errors import ServerDied
from gymcp.mcp_servers.forkserver import client
from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox, open_warm_sandbox
from gymcp.mcp_servers.sandbox import Limits, Sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap

__all__ = ["make"]  # the fixture

COUNTS = """
import mmap
counted = mmap.mmap(-1, 4096)
def begin(): pass
def count():
    counted[0] += 1
    return counted[0]
"""


def test_objects_made_at_import_are_private_to_each_episode(bwrap: Bubblewrap, make: Make) -> None:
    async def episodes() -> list[str]:
        said = []
        async with open_warm_sandbox(bwrap) as warm:
            for _ in range(2):
                async with session(warm, make(COUNTS)) as opened:
                    said += [await run(opened, "out = extra.count()") for _ in range(2)]
        return said

    assert asyncio.run(episodes()) == ["1", "2", "1", "2"]


def test_control_objects_made_at_import_would_be_shared() -> None:
    """A plain fork shares the count with its parent."""
    names: dict[str, Callable[[], int]] = {}
    exec(COUNTS, names)  # noqa: S102
    assert names["count"]() == 1
    if (child := os.fork()) == 0:
        os._exit(names["count"]())
    assert (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), names["count"]()) == (2, 3)


LATER = """
import os, signal
forks = []
def act():
    forks.append(1)
    if len(forks) == 3 and os.fork() == 0:
        signal.alarm(60)
        ACT
def begin(): pass
if os.getpid() == 1: os.register_at_fork(after_in_parent=act)
"""
SPINS = "while True: pass"
GROWS = "kept = bytearray(os.urandom(1)) * 600_000_000; signal.pause()"


@pytest.mark.parametrize(
    ("code", "limits", "limit"),
    [
        (SPINS, Limits(cpu_s=2.0), r"cpu: the process tree used more than 2\.3 s of CPU time"),
        (GROWS, Limits(memory_mb=200), r"memory: the process tree used more than \d+ MB"),
    ],
    ids=["spins", "grows"],
)
def test_a_process_left_by_an_import_has_limits(
    limited: Bubblewrap, make: Make, monkeypatch: pytest.MonkeyPatch, code: str, limits: Limits, limit: str
) -> None:
    """The process starts after the check for leftover processes: in the spawner, while it starts the next server."""
    monkeypatch.setattr(client, "_MIN_CPU_S", 2.0)
    spec = make(LATER.replace("ACT", code), limits=limits)

    async def episodes() -> str | None:
        async with open_warm_sandbox(limited) as warm, session(warm, spec):
            assert isinstance(warm, WarmSandbox)
            spawner = warm.fork_servers[0]
            with suppress(ServerDied):  # the limit may end the spawner before this server has answered
                async with session(warm, spec), asyncio.timeout(60):
                    await spawner.gone.wait()
            return spawner.process.exceeded_limit()

    said = asyncio.run(episodes())
    assert re.fullmatch(limit, str(said)), said


def test_the_cpu_time_of_servers_does_not_count_for_their_fork_server(
    limited: Bubblewrap, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers use 1.5 s of CPU time each, and end: their fork server, which may use 2 s, goes on."""
    monkeypatch.setattr(client, "_MIN_CPU_S", 2.0)
    spec = make(limits=Limits(cpu_s=2.0))
    spin = "import time\nwhile time.process_time() < 1.5: pass\nout = 'spun'"

    async def episodes() -> list[str]:
        said = []
        async with open_warm_sandbox(limited) as warm:
            for _ in range(2):
                async with session(warm, spec) as opened:
                    said.append(await run(opened, spin))
            async with session(warm, spec) as opened:
                said.append(await run(opened, "out = 'alive'"))
                assert is_forked(opened)
            assert isinstance(warm, WarmSandbox)
            said.append(str(warm.fork_servers[0].process.exceeded_limit()))
        return said

    assert asyncio.run(episodes()) == ["spun", "spun", "alive", "None"]


def test_late_imports_are_preloaded_the_next_time(bwrap: Bubblewrap, make: Make) -> None:
    async def episode(sandbox: Sandbox) -> str:
        async with session(sandbox, make()) as opened:
            return await run(opened, "out = 'sqlite3' in loaded")

    async def both() -> tuple[str, str]:
        async with open_warm_sandbox(bwrap) as warm:
            return await episode(warm), await episode(bwrap)

    assert asyncio.run(both()) == ("True", "False")
