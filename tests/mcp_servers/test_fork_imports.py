"""Imports of a fork server: what they make is private to each episode, what they leave running has limits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
from script_sessions import Make, make, run, session

from gymcp.mcp_servers.forkserver import client
from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox, open_warm_sandbox
from gymcp.mcp_servers.sandbox import Limits, Sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.cgroup import usable_hierarchy

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


SPINS_LATER = """
import os, signal
forks = []
def spin():
    forks.append(1)
    if len(forks) == 3 and os.fork() == 0:
        signal.alarm(60)
        while True: pass
def begin(): pass
if os.getpid() == 1: os.register_at_fork(after_in_parent=spin)
"""


def test_a_process_left_by_an_import_has_a_cpu_limit(
    bwrap: Bubblewrap, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process starts after the check for leftover processes: in the spawner, while it starts the next server."""
    hierarchy = usable_hierarchy() if bwrap.uses_cgroup else None
    if hierarchy is None or hierarchy.cpu is None:
        pytest.skip("no writable cgroup that counts CPU time")
    monkeypatch.setattr(client, "_MIN_CPU_S", 2.0)
    spec = make(SPINS_LATER, limits=Limits(cpu_s=2.0))

    async def episodes() -> str | None:
        async with open_warm_sandbox(bwrap) as warm, session(warm, spec), session(warm, spec):
            assert isinstance(warm, WarmSandbox)
            async with asyncio.timeout(60):
                await warm.fork_servers[0].gone.wait()
            return warm.fork_servers[0].process.exceeded_limit()

    assert asyncio.run(episodes()) == "cpu: the process tree used more than 2.3 s of CPU time"


def test_late_imports_are_preloaded_the_next_time(bwrap: Bubblewrap, make: Make) -> None:
    async def episode(sandbox: Sandbox) -> str:
        async with session(sandbox, make()) as opened:
            return await run(opened, "out = 'sqlite3' in loaded")

    async def both() -> tuple[str, str]:
        async with open_warm_sandbox(bwrap) as warm:
            return await episode(warm), await episode(bwrap)

    assert asyncio.run(both()) == ("True", "False")
