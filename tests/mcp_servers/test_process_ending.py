"""The reason for the end of a server process, read from the files of its cgroup."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gymcp.mcp_servers.sandbox.cgroup import Cgroup
from gymcp.mcp_servers.sandbox.process_ending import ProcessEnding, StderrTail
from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.mcp_servers.sandbox.watchdog import cpu_limit, memory_limit, process_limit

LIMITS = Limits(memory_mb=100, processes=5, cpu_s=2.0, stderr_bytes=4)


def limit_found(
    folder: Path, *, oom_kills: int = 0, cpu_us: int = 0, refused: int = 0, count_forks: bool = True
) -> str | None:
    """The limit that an ending finds in a cgroup with these counters."""
    (folder / "memory.events").write_text(f"low 0\noom {oom_kills}\noom_kill {oom_kills}\n")
    (folder / "cpu.stat").write_text(f"usage_usec {cpu_us}\n")
    (folder / "pids.events").write_text(f"max {refused}\n")

    async def find() -> str | None:
        ending = ProcessEnding(LIMITS, Cgroup(version=2, memory=folder, pids=folder, cpu=folder))
        ending.find_limit(LIMITS, count_forks=count_forks)
        return ending.limit

    return asyncio.run(find())


def test_the_cgroup_names_the_limit_and_memory_comes_first(tmp_path: Path) -> None:
    assert limit_found(tmp_path) is None
    assert limit_found(tmp_path, oom_kills=1, cpu_us=3_000_000, refused=1) == memory_limit(LIMITS)
    assert limit_found(tmp_path, cpu_us=3_000_000, refused=1) == cpu_limit(LIMITS)
    assert limit_found(tmp_path, cpu_us=2_000_000, refused=1) == process_limit(LIMITS)


def test_a_refused_fork_is_no_reason_if_the_process_ended_well(tmp_path: Path) -> None:
    assert limit_found(tmp_path, refused=1, count_forks=False) is None
    assert limit_found(tmp_path, oom_kills=1, count_forks=False) == memory_limit(LIMITS)


def test_the_first_reason_stays_and_a_process_that_is_being_closed_gets_none(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("oom 1\noom_kill 1\n")

    async def find() -> tuple[str | None, str | None, str | None]:
        cgroup = Cgroup(version=2, memory=tmp_path, pids=tmp_path, cpu=None)
        full, closing, unlimited = (
            ProcessEnding(LIMITS, cgroup),
            ProcessEnding(LIMITS, cgroup),
            ProcessEnding(LIMITS, None),
        )
        full.record_limit("disk: full")
        full.record_limit("disk: fuller")
        closing.is_closing = True
        for ending in (full, closing, unlimited):
            ending.find_limit(LIMITS)
        return full.limit, closing.limit, unlimited.limit

    assert asyncio.run(find()) == ("disk: full", None, None)


def test_only_the_end_of_standard_error_is_kept() -> None:
    async def read() -> str:
        ending = ProcessEnding(LIMITS, None)
        assert isinstance(ending.stderr, StderrTail)
        for piece in (b"abc", b"def", b"\xff"):
            ending.stderr.data_received(piece)
        return ending.stderr_tail()

    assert asyncio.run(read()) == "def\N{REPLACEMENT CHARACTER}"
