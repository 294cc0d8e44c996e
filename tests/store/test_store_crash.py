"""No episode is lost or doubled, under kill -9 and with two writers."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from records import episode

from gymcp.store import TrajectoryStore
from gymcp.store.database import FILE_NAME

WRITER = Path(__file__).with_name("store_writer.py")


def writer(folder: Path, name: str, *count: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), str(folder), name, *count]
    env = {**os.environ, "PYTHONPATH": str(WRITER.parents[1])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def ids(folder: Path) -> list[str]:
    with TrajectoryStore.open(folder) as store:
        return [row.id for row in store.summaries(latest=False)]


def assert_whole(folder: Path, id: str) -> None:
    task, name = id.split(" by ")
    with TrajectoryStore.open(folder) as store:
        expected = replace(episode(task, steps=10), id=f"{task} by {name}", final_state=f"{task}/state-2")
        assert store.load(id) == expected
        for n in range(3):
            assert store.state(f"{task}/state-{n}") == {"rows": ["x" * 500] * n, "of": task}


@pytest.mark.parametrize("moment", range(8))
def test_an_acknowledged_episode_outlives_kill_9(tmp_path: Path, moment: int) -> None:
    chance = random.Random(moment)
    acknowledged = []
    with writer(tmp_path, "w") as process:
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 60)):
            acknowledged.append(process.stdout.readline().strip())
        until = time.perf_counter() + chance.uniform(0, 0.02)
        while time.perf_counter() < until:
            pass
        process.kill()
        rest = process.stdout.read()
    # a line cut short was not said
    acknowledged += [line.strip() for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    recorded = ids(tmp_path)
    assert recorded[: len(acknowledged)] == acknowledged
    assert len(recorded) - len(acknowledged) in (0, 1)  # one may be committed and not yet said
    for id in recorded:
        assert_whole(tmp_path, id)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    with TrajectoryStore.open(tmp_path, write=True) as store:
        assert store.append(episode("after"), {}) == 0


def test_two_writers_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    with writer(tmp_path, "left", "40") as left, writer(tmp_path, "right", "40") as right:
        said = [*left.communicate()[0].splitlines(), *right.communicate()[0].splitlines()]
    assert (left.returncode, right.returncode) == (0, 0)
    won = [line for line in said if not line.startswith("refused")]
    assert sorted(ids(tmp_path)) == sorted(won)
    assert sorted(id.split(" by ")[0] for id in won) == sorted(
        f"{name}-{n}" for name in ("left", "right", "shared") for n in range(40)
    )
    assert sorted(line for line in said if line.startswith("refused")) == sorted(
        f"refused shared-{n}" for n in range(40)
    )


def test_a_reader_sees_only_whole_episodes_while_a_writer_writes(tmp_path: Path) -> None:
    counts = []
    with writer(tmp_path, "w", "60") as process:
        assert process.stdout is not None
        process.stdout.readline()
        while process.poll() is None:
            found = ids(tmp_path)
            counts.append(len(found))
            assert_whole(tmp_path, found[-1])
        process.stdout.read()
    assert process.returncode == 0
    assert counts == sorted(counts)
    assert len(ids(tmp_path)) == 120
