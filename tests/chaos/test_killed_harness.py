"""`kill -9` in the middle of a run, then `gymcp clean`: nothing of it is left, and another run has noticed nothing."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import warm_command
from chaos import TOKEN
from faults import NO_FAULT, SANDBOX, StartPath
from leftovers import find_marked

from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.outcome import Outcome
from gymcp.process_owner import is_alive, start_time
from gymcp.store import TrajectoryStore

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ENV_FILE = """
import os
import sys
sys.path.insert(0, {folder!r})
from chaos import TOKEN, with_token
from faults import environment
loaded = with_token(environment({start_path!r}, [{fault!r}]), os.environ[TOKEN])
from dataclasses import replace
ENV = replace(loaded.spec, servers=loaded.servers)
"""
INTERRUPTED = 130
WAIT_S = 120
"""Seconds in which a run has recorded what a test waits for."""
AT_FIRST = 2
"""Episodes to wait for before the harness is killed, and after it was cleaned up."""
TRIALS = 5000
"""Episodes of each run: neither comes to its end before it is killed or interrupted."""


class Run:
    """One `gymcp eval`, with a server that does this wrong in each episode."""

    def __init__(self, start_path: StartPath, folder: Path, name: str, fault: str = NO_FAULT) -> None:
        self.token = f"{name}-{os.getpid()}"
        self.folder, self._said = folder / name, folder / f"{name}.txt"
        file = folder / f"{name}.py"
        file.write_text(ENV_FILE.format(folder=str(BENCHMARKS), start_path=start_path, fault=fault))
        words = ["eval", str(file), "--sandbox", SANDBOX[start_path], "--trials", str(TRIALS)]
        words += ["--out", str(self.folder), "--concurrency", "4", "--json"]
        with self._said.open("w") as said:
            env = {**os.environ, TOKEN: self.token}
            self.command = warm_command.start(words, said.fileno(), said.fileno(), cwd=None, env=env)
        self.owner = f"{self.command.pid}-{start_time(self.command.pid)}"

    def count_recorded(self) -> int:
        if not (self.folder / "trajectories.sqlite").exists():
            return 0
        with TrajectoryStore.open(self.folder) as store:
            return len(store.summaries())

    def wait_until_it_plays(self) -> None:
        """Wait until some more episodes are recorded."""
        until, deadline = self.count_recorded() + AT_FIRST, time.monotonic() + WAIT_S
        while not self.command.ends_within(0.2) and time.monotonic() < deadline:
            if self.count_recorded() >= until:
                return
        raise AssertionError(self.said())

    def said(self) -> str:
        return self._said.read_text()

    def end(self, number: signal.Signals) -> int:
        """Send it a signal; its exit code."""
        os.kill(self.command.pid, number)
        return self.command.wait(60)

    def kill(self) -> None:
        if is_alive(self.owner):
            os.kill(self.command.pid, signal.SIGKILL)


def reaper_of(owner: str) -> int | None:
    """The process that removes the containers of a dead harness."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if len(words) > 3 and words[3] == owner.encode():
                return int(entry.name)
    return None


@pytest.mark.parametrize("start_path", ["files", "forked", "docker"])
def test_nothing_of_a_killed_run_is_left_and_a_living_one_is_untouched(
    start_path: StartPath, require: Callable[[str], None], tmp_path: Path
) -> None:
    require(SANDBOX[start_path])
    with contextlib.ExitStack() as ends:
        living = Run(start_path, tmp_path, "living", "answers late")  # it waits most of the time
        ends.callback(living.kill)
        living.wait_until_it_plays()
        victim = Run(start_path, tmp_path, "victim")
        ends.callback(victim.kill)
        victim.wait_until_it_plays()
        assert find_marked(victim.owner, SANDBOX[start_path]) != []
        reaper = reaper_of(victim.owner)
        handle = os.pidfd_open(reaper) if reaper is not None else None
        assert victim.end(signal.SIGKILL) == -signal.SIGKILL
        cleaned = warm_command.run(["clean"], cwd=None, env=os.environ, timeout_s=300)
        assert cleaned.returncode == 0, cleaned.stderr
        assert f"(of process {living.owner})" not in cleaned.stdout
        if handle is not None:
            assert select.select([handle], [], [], 60)[0]
            os.close(handle)
        assert find_by_environment(TOKEN, victim.token) == ()
        assert find_marked(victim.owner, SANDBOX[start_path]) == []
        living.wait_until_it_plays()
        assert living.end(signal.SIGINT) == INTERRUPTED, living.said()
        with TrajectoryStore.open(living.folder) as store:
            assert {summary.outcome for summary in store.summaries()} <= {Outcome.SCORED, Outcome.CANCELLED}
        assert (find_by_environment(TOKEN, living.token), find_marked(living.owner, SANDBOX[start_path])) == ((), [])
