"""A run that is killed or interrupted, then resumed: nothing lost, nothing twice, nothing left on the machine."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
import warm_command
from cli_runner import BANK, GYMCP, gymcp

from gymcp.store import TrajectoryStore

TRIALS = 20
WAIT_S = 120
"""Seconds in which a run has recorded what a test waits for."""
EPISODES = 3 * TRIALS


def words(run: Path) -> list[str]:
    return ["eval", str(BANK), "--trials", str(TRIALS), "--out", str(run), "--resume", "--json"]


def start(run: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([str(GYMCP), *words(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def count_recorded(run: Path) -> int:
    """Number of episodes in the store; 0 if there is no store yet."""
    if not (run / "trajectories.sqlite").exists():
        return 0
    with TrajectoryStore.open(run) as store:
        return len(store.summaries())


def interrupt_at(process: subprocess.Popen[str], run: Path, episodes: int, sign: signal.Signals) -> str:
    """Send the signal once that many episodes are recorded; return what was printed on standard error."""
    while count_recorded(run) < episodes and process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.02)
    process.send_signal(sign)
    return process.communicate(timeout=60)[1]


def finish(run: Path, ended: list[int]) -> None:
    """Resume to the end. `ended`: earlier processes; neither they nor this one may leave anything behind."""
    with tempfile.TemporaryFile() as out:
        process = warm_command.start(words(run), out.fileno(), 2, cwd=None, env=os.environ)
        assert process.wait(300) == 0
        out.seek(0)
        assert json.load(out)["outcomes"] == {"scored": EPISODES}
    with TrajectoryStore.open(run) as store:
        keys = Counter((row.task, row.trial) for row in store.summaries())
        scores = {row.score for row in store.summaries()}
    assert len(keys) == EPISODES
    assert (set(keys.values()), scores) == ({1}, {1.0})
    left = gymcp("clean", "--dry-run").stdout  # other tests' too, which run beside it
    assert [pid for pid in (*ended, process.pid) if f"(of process {pid}-" in left] == []


def test_kill_9_at_random_moments_then_resume_loses_nothing(tmp_path: Path) -> None:
    moments = sorted(random.Random(1).sample(range(1, EPISODES // 2), 2))  # long before it ends by itself
    killed = []
    for moment in moments:
        with tempfile.TemporaryFile() as out:
            command = warm_command.start(words(tmp_path), out.fileno(), 2, cwd=None, env=os.environ)
        killed.append(command.pid)
        deadline = time.monotonic() + WAIT_S
        try:
            while count_recorded(tmp_path) < moment:
                assert not command.ends_within(0.02)
                assert time.monotonic() < deadline
        finally:
            os.kill(command.pid, signal.SIGKILL)
        assert command.wait(60) == -signal.SIGKILL
    finish(tmp_path, killed)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_stops_at_once_and_can_be_resumed(sign: signal.Signals, tmp_path: Path) -> None:
    process = start(tmp_path)
    said = interrupt_at(process, tmp_path, 10, sign)
    assert process.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    assert 10 <= count_recorded(tmp_path) < EPISODES
    finish(tmp_path, [process.pid])
