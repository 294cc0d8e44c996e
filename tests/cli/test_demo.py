"""`gymcp demo`, from any folder: what it plays, what it shows, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
import warm_command
from cli_runner import GYMCP, TIMEOUT_S, gymcp

from gymcp.cli.demo.parts import AGENTS

QUICK = ("demo", "--only", "bfcl", "--limit", "3")
of_one_demo = pytest.mark.xdist_group("demo")


def reports(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().endswith("report.html")]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder, and the demo that was played in it."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, gymcp(*QUICK, cwd=folder)


@of_one_demo
def test_the_first_part_prints_expected_and_measured_scores_and_ends_with_existing_pages(
    quick: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = quick
    assert done.returncode == 0, done.stderr
    assert "Part 1/1: BFCL multi-turn" in done.stdout
    assert "Look at: " in done.stdout
    assert reports(done.stdout) == ["runs/demo/oracle/report.html", "runs/demo/random/report.html"]
    assert all((folder / report).is_file() for report in reports(done.stdout))
    viewer = done.stdout.splitlines()[-1].split()
    assert viewer[-2:] == ["view", "runs/demo"]
    assert Path(folder, viewer[0]).is_file() or viewer[0] == "gymcp"


@of_one_demo
def test_it_shows_calls_and_how_the_world_changes(quick: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    text = quick[1].stdout
    for label in ("user", "call", "result", "world"):
        assert re.search(rf"^  {label} +\S", text, flags=re.MULTILINE), label
    shown = re.findall(r"^  (multi_turn_\S+) +score (\d\S*) +(\d+) calls?", text, flags=re.MULTILINE)
    assert len(shown) == 3 * len(AGENTS)
    assert [score for _, score, _ in shown[:6]] == ["1"] * 3 + ["0"] * 3
    assert {calls for _, _, calls in shown[6:9]} == {"0"}
    assert max(len(line) for line in text.splitlines()) <= 80


def play_on_a_terminal(folder: Path, *words: str) -> list[str]:
    """Lines on a terminal of a command that ends well, without what acts on the terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    command = warm_command.start(words, theirs, theirs, cwd=folder, env=env)
    os.close(theirs)
    parts = []
    while True:
        try:
            parts.append(os.read(ours, 65536))
        except OSError:  # the terminal's other side is closed
            break
    os.close(ours)
    assert command.wait(TIMEOUT_S) == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(parts).decode()).replace("\r", "\n").splitlines()


@of_one_demo
def test_a_second_demo_leaves_the_first_alone_and_its_episodes_stand_above_the_progress_on_a_terminal(
    quick: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, first = quick
    lines = play_on_a_terminal(folder, "demo", "--only", "bfcl", "--limit", "1")
    assert reports(first.stdout)[0] == "runs/demo/oracle/report.html"
    assert reports("\n".join(lines))[0] == "runs/demo-2/oracle/report.html"
    assert sum("multi_turn_" in line and "score" in line for line in lines) == len(AGENTS)


def test_json_is_one_object_and_the_text_goes_to_standard_error_and_the_runs_to_a_given_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = gymcp("demo", "--only", "bfcl", "--limit", "1", "--json", "--out", "mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert {name: run["success"] for name, run in found["runs"]["bfcl"].items()} | {"random": None} == {
        name: expected for name, (expected, _) in AGENTS.items()
    }
    assert (tmp_path / "mine" / "oracle" / "run.json").is_file()
    assert "Look at: " in done.stderr


def test_it_works_in_the_c_locale_and_on_a_stream_of_ascii(tmp_path: Path) -> None:
    env = {**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    words = [str(GYMCP), "demo", "--only", "bfcl", "--limit", "1"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "oracle" in done.stdout


def test_an_interrupt_keeps_what_was_played_and_names_it(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours, encoding="utf-8") as printed, tempfile.TemporaryFile("w+") as said:
        words = ("demo", "--only", "bfcl", "--limit", "0")
        command = warm_command.start(words, theirs, said.fileno(), cwd=tmp_path, env=os.environ)
        os.close(theirs)
        next(line for line in printed if line.startswith("  multi_turn_"))  # the first run has begun
        os.kill(command.pid, signal.SIGINT)
        printed.read()
        assert command.wait(TIMEOUT_S) == 130
        said.seek(0)
        errors = said.read()
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].endswith("view runs/demo")
    assert (tmp_path / "runs" / "demo" / "oracle" / "report.html").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "nothing"), "nothing"),
        (("--limit", "-1"), "'--limit'"),
        (("--only", "bfcl", "--out", "file/below"), "file/below: cannot be made"),
    ],
)
def test_wrong_options_are_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = gymcp("demo", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
