"""`kill -9` in the middle of a run, then `gymcp clean`: nothing of it is left, and another run has noticed nothing."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import warm_command
from chaos import TOKEN
from faults import NO_FAULT, SANDBOX, StartPath
from leftovers import find_marked

from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.outcome import Outcome
from gymcp.process_owner import start_time
from gymcp.store import TrajectoryStore

GYMCP = Path(sys.executable).with_name("gymcp")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ENV_FILE = """
import os
from chaos import TOKEN, with_token
from faults import environment
loaded = with_token(environment({start_path!r}, [{fault!r}]), os.environ[TOKEN])
from dataclasses import replace
ENV = replace(loaded.spec, servers=loaded.servers)
"""
INTERRUPTED = 130
AT_FIRST = 4
"""Episodes to wait for before the harness is killed, and after it was cleaned up."""
TRIALS = 5000
"""Episodes of each run: neither comes to its end before it is killed or interrupted."""


class Run:
    """One `gymcp eval`, with a server that does this wrong in each episode."""

    def __init__(self, start_path: StartPath, folder: Path, name: str, fault: str = NO_FAULT) -> None:
        self.token = f"{name}-{os.getpid()}"
        self.folder = folder / name
        file = folder / f"{name}.py"
        file.write_text(ENV_FILE.format(start_path=start_path, fault=fault))
        command = [str(GYMCP), "eval", str(file), "--sandbox", SANDBOX[start_path], "--trials", str(TRIALS)]
        self.process = subprocess.Popen(
            [*command, "--out", str(self.folder), "--concurrency", "4", "--json"],
            env={**os.environ, "PYTHONPATH": str(BENCHMARKS), TOKEN: self.token},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.owner = f"{self.process.pid}-{start_time(self.process.pid)}"

    def recorded(self) -> int:
        if not (self.folder / "trajectories.sqlite").exists():
            return 0
        with TrajectoryStore.open(self.folder) as store:
            return len(store.summaries())

    def wait_until_it_plays(self) -> None:
        """Wait until some more episodes are recorded."""
        until = self.recorded() + AT_FIRST
        while self.recorded() < until and self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.05)
        assert self.process.poll() is None, self.process.communicate()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


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
    with contextlib.ExitStack() as runs:
        living = Run(start_path, tmp_path, "living", "answers late")  # it waits most of the time
        runs.callback(living.end)
        living.wait_until_it_plays()
        victim = Run(start_path, tmp_path, "victim")
        runs.callback(victim.end)
        victim.wait_until_it_plays()
        assert find_marked(victim.owner, SANDBOX[start_path]) != []
        reaper = reaper_of(victim.owner)
        handle = os.pidfd_open(reaper) if reaper is not None else None
        victim.process.send_signal(signal.SIGKILL)
        victim.process.communicate(timeout=60)
        cleaned = warm_command.run(["clean"], cwd=None, env=os.environ, timeout_s=300)
        assert cleaned.returncode == 0, cleaned.stderr
        assert f"(of process {living.owner})" not in cleaned.stdout
        if handle is not None:
            assert select.select([handle], [], [], 60)[0]
            os.close(handle)
        assert find_by_environment(TOKEN, victim.token) == ()
        assert find_marked(victim.owner, SANDBOX[start_path]) == []
        living.wait_until_it_plays()
        living.process.send_signal(signal.SIGINT)
        _, err = living.process.communicate(timeout=60)
        assert living.process.returncode == INTERRUPTED, err
        with TrajectoryStore.open(living.folder) as store:
            assert {summary.outcome for summary in store.summaries()} <= {Outcome.SCORED, Outcome.CANCELLED}
        assert (find_by_environment(TOKEN, living.token), find_marked(living.owner, SANDBOX[start_path])) == ((), [])
