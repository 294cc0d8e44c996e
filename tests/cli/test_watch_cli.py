"""`gymcp watch`: what it says of a run that grows, and how it ends."""

from __future__ import annotations

import itertools
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from cli_runner import BANK, GYMCP, gymcp
from recorded_runs import write_run, write_training_run
from records import episode, order_episode

from gymcp.agents.runner.run import PLANNED_KEY
from gymcp.cli.runs.watch import Goal, describe_state, follow_run, rate_per_s, read_goal
from gymcp.evaluators.viewer.summary import summarise_run
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow, TrajectoryStore, create_run, is_in_use
from gymcp.store.run_folder import lock_run
from gymcp.types import Usage

CONFIG = {"env": "shop", "suite": "shop", "agent": "react", "policy": "tiny", "tasks": "*", "limit": 3, "trials": 2}


def row_ended_at(seconds: float) -> EpisodeRow:
    return EpisodeRow(id=str(seconds), env="e", task="t", usage=Usage(started_at=seconds - 1, wall_s=1))


def test_the_rate_is_that_of_the_last_two_minutes() -> None:
    assert rate_per_s([row_ended_at(1000.0 + n) for n in range(60)], now=1059.0) == pytest.approx(1.0)
    assert rate_per_s([row_ended_at(1000.0), row_ended_at(5000.0)], now=5060.0) == pytest.approx(1 / 120)
    assert rate_per_s([], now=5060.0) == 0.0


def test_the_state_is_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", "steady", paying=5, tasks=10)
    line = describe_state(summarise_run(run), [], Goal(episodes=50), running=False, now=0.0)
    assert line == (
        "shop · steady · 0/50 episodes · success 50.0 % (24.8 – 75.2) · 10 failed · 1 without a score ·"
        " stopped at 0 of 50 episodes; go on with: "
    )
    trained = describe_state(
        summarise_run(write_training_run(tmp_path / "t")), [], Goal(iterations=9), running=True, now=0.0, quiet_s=600.0
    )
    assert "iteration 4/9" in trained
    assert "held-out 50.0 % (37.5 – 75.0) after iteration 4" in trained
    assert trained.endswith("nothing new for 10:00")
    half = summarise_run(write_training_run(tmp_path / "half", scored=4))
    line = describe_state(half, [], Goal(), running=True, now=0.0)
    assert "held-out 25.0 .. 75.0 % (4/8 scored) after iteration 4" in line
    assert "50.0 %" not in line


def test_a_growing_run_is_followed_to_its_end(tmp_path: Path) -> None:
    planned = create_run(tmp_path / "run", CONFIG, start={PLANNED_KEY: 6})
    with planned as run, TrajectoryStore.open(run.folder, write=True) as store:
        assert is_in_use(run.folder)

        def work(seconds: float) -> None:
            store.append(episode("a"), {})

        looks = follow_run(run.folder, 0.0, pause=work)
        said = [look.line for look in itertools.islice(looks, 2)]
        store.append(order_episode("b", 0, pays=False, run="r", score=None, outcome=Outcome.TIMEOUT), {})
    assert [line.split(" · ")[3] for line in said] == ["0/6 episodes", "1/6 episodes"]
    assert not is_in_use(run.folder)
    (last,) = follow_run(run.folder, 0.0)
    assert last.line.endswith(
        f"1 without a score · stopped at 1 of 6 episodes; go on with: gymcp eval ... --out {run.folder} --resume"
    )
    assert last.is_stopped
    assert last.lost == ["lost: b trial 0: timeout: order 7 is open, wanted paid"]


def test_the_goal_is_that_of_the_record(tmp_path: Path) -> None:
    with create_run(tmp_path / "run", CONFIG, start={PLANNED_KEY: 5}):
        assert read_goal(tmp_path / "run").episodes == 5
    with create_run(tmp_path / "older", CONFIG):  # its environment's tasks are not at hand
        assert read_goal(tmp_path / "older").episodes is None
    assert read_goal(write_training_run(tmp_path / "t")).has_ended is True
    assert read_goal(write_training_run(tmp_path / "k", ended=None)).has_ended is False
    assert read_goal(tmp_path / "nothing") == Goal()


def test_a_training_that_was_killed_in_its_warm_start_is_no_ended_evaluation(tmp_path: Path) -> None:
    with create_run(tmp_path / "run", {"env": "shop", "recipe": {"learn": {"iterations": 9}}}) as run:
        TrajectoryStore.open(run.folder, write=True).close()
    (last,) = follow_run(run.folder, 0.0)
    assert last.line.endswith(f"stopped at 0 of 9 iterations; go on with: gymcp train ... --out {run.folder} --resume")


def test_an_evaluation_whose_lost_episodes_were_all_tried_has_ended(tmp_path: Path) -> None:
    planned = create_run(tmp_path / "run", CONFIG, start={PLANNED_KEY: 2})
    with planned as run, TrajectoryStore.open(run.folder, write=True) as store:
        store.append(episode("a"), {})
        store.append(order_episode("b", 0, pays=False, run="r", score=None, outcome=Outcome.TIMEOUT), {})
    assert [look.line.split(" · ")[-1] for look in follow_run(run.folder, 0.0)] == ["ended"]


def test_an_environment_file_has_the_goal_of_its_tasks_and_a_stopped_run_says_how_to_go_on(tmp_path: Path) -> None:
    """The bank has three tasks, fewer than the limit."""
    run = tmp_path / "run"
    assert gymcp("eval", BANK, "--limit", "100", "--trials", "2", "--out", run).returncode == 0
    whole = gymcp("watch", run)
    assert (whole.returncode, "6/6 episodes" in whole.stdout) == (0, True)
    assert whole.stdout.endswith("ended\n")
    with closing(sqlite3.connect(run / "trajectories.sqlite")) as database, database:
        database.execute("DELETE FROM trajectories WHERE trial = 1")
    half = gymcp("watch", run)
    assert half.returncode == 1
    assert half.stdout.endswith(f"stopped at 3 of 6 episodes; go on with: gymcp eval ... --out {run} --resume\n")


def test_a_training_that_was_killed_is_not_followed_for_ever(tmp_path: Path) -> None:
    run = write_training_run(tmp_path / "t", ended=None)
    with lock_run(run):
        (look,) = itertools.islice(follow_run(run, 0.0), 1)
        assert not look.is_stopped
    *_, last = follow_run(run, 0.0)
    assert last.line.endswith(f"stopped before its end; go on with: gymcp train ... --out {run} --resume")


def test_a_run_that_has_ended_is_described_and_left(tmp_path: Path) -> None:
    done = gymcp("watch", write_run(tmp_path / "run", "steady", paying=1, tasks=1))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].startswith("lost: lost trial 0: env_infra")
    assert done.stdout.splitlines()[1].endswith("ended")


@pytest.mark.parametrize("name", ["nothing", "empty", "broken"])
def test_a_folder_without_a_run_is_one_line_and_exit_code_2(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    done = gymcp("watch", tmp_path / name)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"gymcp: run folder {tmp_path / name}: ")


def test_an_interrupt_ends_watching_with_130(tmp_path: Path) -> None:
    run = write_training_run(tmp_path / "run", ended=None)
    command = [str(GYMCP), "watch", str(run)]
    with lock_run(run):  # still going on
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert "iteration 4" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, f"gymcp: stopped watching; run folder {run} is left as it is\n")
