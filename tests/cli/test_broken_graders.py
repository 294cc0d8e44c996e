"""Graders of users that fail: one line with the user's own line, and no verdict is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp
from stderr_lines import errors

from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore

HEAD = "from gymcp.types import Score\n\n\n"
"""Three lines: what follows begins in line 4."""
DEF = "def GRADE(task, trajectory, states):\n    "
RIGHT = "def GRADE(task, trajectory, states) -> Score"


def verdicts(run: Path) -> list[tuple[str, Outcome, float | None, str | None]]:
    with TrajectoryStore.open(run) as store:
        return [(row.task, row.outcome, row.score, row.grader) for row in store.summaries()]


def pages(run: Path) -> dict[str, bytes]:
    """Files of the run but the database."""
    return {path.name: path.read_bytes() for path in run.iterdir() if "sqlite" not in path.name}


@pytest.fixture
def run(bank_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(bank_run, tmp_path / "run")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "def GRADE(task, trajectory):\n    return 1",
            f"takes (task, trajectory); it is called with 3 arguments: {RIGHT}",
        ),
        (f"async {DEF}return 1", f"is async; make it a plain function: {RIGHT}"),
        ("GRADE = 5", "defines no function GRADE(task, trajectory, states)"),
        (f"{DEF}return 1.0", "mine.py:4: GraderError: gave float, not a Score"),
        (f"{DEF}return states('gone')", "mine.py:5: KeyError: 'gone'"),
        (f"{DEF}return task.golden", "mine.py:5: AttributeError: 'Task' object has no attribute 'golden'"),
        (f"{DEF}return Score(value=2)", "the score is 2, not a number in [0, 1]"),
        (f"{DEF}raise SystemError('a\\nb')", "mine.py:5: SystemError: a b"),
        ("def GRADE(task, trajectory, states:\n    return 1", "mine.py:4: SyntaxError: '(' was never closed"),
        ("import gymcp_no_such_package", "mine.py:4: ModuleNotFoundError: No module named 'gymcp_no_such_package'"),
    ],
)
def test_a_broken_grader_is_one_line_and_changes_nothing(body: str, says: str, run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(HEAD + body)
    before = pages(run), verdicts(run)
    done = gymcp("grade", run, "--grader", mine)
    assert (done.returncode, done.stdout, len(errors(done.stderr))) == (2, "", 1), done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert (pages(run), verdicts(run)) == before


def test_a_grader_that_fails_on_some_episodes_leaves_their_verdicts(run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    first, *others = [task for task, *_ in verdicts(run)]
    mine.write_text(f"{HEAD}{DEF}return Score(value={{{first!r}: 0.5}}[task.id])\n")
    done = gymcp("grade", run, "--grader", mine)
    assert (done.returncode, len(errors(done.stderr))) == (3, 1)
    assert f"failed on 2 of 3 episodes; 2 of these keep the verdict they had; first: {others[0]} trial 0" in done.stderr
    assert f"mine.py:5: KeyError: '{others[0]}'" in done.stderr
    expected = [(first, Outcome.SCORED, 0.5, str(mine)), *((task, Outcome.SCORED, 1.0, None) for task in others)]
    assert verdicts(run) == expected
    as_json = json.loads(gymcp("grade", run, "--grader", mine, "--json").stdout)
    assert (as_json["changed"], as_json["failed"], as_json["scored"]) == (0, 2, 3)


def test_an_environment_whose_own_grader_is_broken_names_its_line(tmp_path: Path) -> None:
    env, run = tmp_path / "env.py", tmp_path / "run"
    env.write_text(BANK.read_text())
    lines = len(env.read_text().splitlines())
    assert gymcp("eval", env, "--out", run, "--json").returncode == 0
    broken = "\nfrom dataclasses import replace\nENV = replace(ENV, grade=lambda task, trajectory, states: 1 / 0)\n"
    env.write_text(BANK.read_text() + broken)
    before = verdicts(run)
    done = gymcp("grade", run, "--env", env)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1), done.stderr
    assert f"env.py:{lines + 3}: ZeroDivisionError: division by zero" in done.stderr
    assert verdicts(run) == before
    env.write_text(BANK.read_text() + broken.replace("trajectory, states: 1 / 0", "trajectory: 1"))
    done = gymcp("eval", env, "--out", tmp_path / "other")
    assert (done.returncode, len(errors(done.stderr))) == (2, 1), done.stderr
    assert "its grade: env.py:" in done.stderr
    assert "def grade(task, trajectory, states) -> Score" in done.stderr
