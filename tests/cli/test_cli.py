"""The command line on a small environment: what is printed, what is written, and every bad input."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp

from gymcp.store import TrajectoryStore


def test_eval_prints_the_agreed_object_and_leaves_a_run(tmp_path: Path) -> None:
    done = gymcp("eval", BANK, "--agent", "oracle", "--trials", 2, "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    keys = ["env", "suite", "agent", "episodes", "scored", "success", "ci95", "outcomes", "tool_calls", "wall_s", "run"]
    assert list(summary)[: len(keys)] == keys
    assert (summary["env"], summary["episodes"], summary["scored"], summary["success"]) == ("bank", 6, 6, 1.0)
    assert summary["outcomes"] == {"scored": 6}
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {
        "run.json",
        "trajectories.sqlite",
        "summary.json",
        "report.html",
    }
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary


def test_eval_prints_a_table_for_people(tmp_path: Path) -> None:
    done = gymcp("eval", BANK, "--agent", "null", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "0.0 %" in done.stdout
    assert "3/3" in done.stdout


def test_grade_gives_the_same_scores_offline(tmp_path: Path) -> None:
    gymcp("eval", BANK, "--agent", "oracle", "--out", tmp_path / "run", "--json")
    done = gymcp("grade", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["changed"], summary["success"]) == (0, 1.0)


def test_report_can_be_written_again(tmp_path: Path) -> None:
    gymcp("eval", BANK, "--agent", "oracle", "--out", tmp_path / "run", "--json")
    (tmp_path / "run" / "report.html").unlink()
    assert gymcp("report", tmp_path / "run").returncode == 0
    assert "<html" in (tmp_path / "run" / "report.html").read_text()


def test_check_passes_the_example_and_says_what_it_checked() -> None:
    done = gymcp("check", BANK, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: check["passed"] for name, check in json.loads(done.stdout)["checks"].items()} == dict.fromkeys(
        ["check_env", "oracle", "null", "mutated", "reset", "leaks"], True
    )


def test_check_fails_an_environment_whose_gold_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(BANK.read_text().replace('"bob": 20 + debt', '"bob": 21 + debt'))
    done = gymcp("check", wrong, "--json")
    assert done.returncode == 1
    checks = json.loads(done.stdout)["checks"]
    assert not checks["oracle"]["passed"]
    assert "first: pay_back_100: in the final state" in checks["oracle"]["detail"]


def test_check_finds_gold_that_a_server_can_read(tmp_path: Path) -> None:
    leaky = tmp_path / "leaky.py"
    (tmp_path / "notes.txt").write_text('call transfer with {"source": "ann", "target": "bob", "amount": 30}')
    leaky.write_text(
        BANK.read_text()
        .replace(
            'native_server("bank", Bank)',
            f'native_server("bank", Bank, mounts=[Mount(source=Path("{tmp_path}/notes.txt"), '
            'target=PurePosixPath("/srv/notes.txt"))])',
        )
        .replace(
            "from gymcp.envs import EnvSpec",
            "from pathlib import Path, PurePosixPath\n\nfrom gymcp.envs import EnvSpec\n"
            "from gymcp.mcp_servers.sandbox import Mount",
        )
    )
    done = gymcp("check", leaky, "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    leaks = json.loads(done.stdout)["checks"]["leaks"]
    assert not leaks["passed"]
    assert "/srv/notes.txt" in leaks["detail"]


def test_suites_and_doctor_and_clean_say_what_there_is() -> None:
    assert "bfcl" in gymcp("suites").stdout
    assert [s["name"] for s in json.loads(gymcp("suites", "--json").stdout)["suites"]] == [
        "bfcl",
        "filesystem",
        "git",
        "memory",
        "sequential_thinking",
        "time",
    ]
    doctor = gymcp("doctor", "--json")
    assert doctor.returncode == 0, doctor.stdout
    assert gymcp("clean").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval", "nope"], "no environment 'nope'; have bfcl"),
        (["eval", "nope.py"], "environment file 'nope.py': not found"),
        (["eval", BANK, "--agent", "wizard"], "no agent 'wizard'; have oracle, null, mutated, random"),
        (["eval", BANK, "--sandbox", "jail"], "no sandbox 'jail'; have bwrap, docker, none"),
        (["eval", BANK, "--tasks", "x*"], "no task matches 'x*'; the ids look like"),
        (["eval", BANK, "--resume"], "--resume: which run?"),
        (["eval", BANK, "--out", "/proc/nope"], "run folder /proc/nope: cannot be written"),
        (["grade", "/nowhere"], "run folder /nowhere: holds no run.json"),
        (["report", "/nowhere"], "run folder /nowhere: holds no run.json"),
        (["check", "nope"], "no environment 'nope'; have bfcl"),
        (["suites", "install", "nope"], "no environment 'nope'; have bfcl"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[object], said: str, tmp_path: Path) -> None:
    done = gymcp(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ENV = ", "SyntaxError"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("x = 1", "defines no ENV"),
        ("ENV = 3", "its ENV is a int"),
        ("raise RuntimeError('no')", "RuntimeError: no"),
    ],
)
def test_a_malformed_environment_file_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    done = gymcp("eval", file)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert said in done.stderr


def test_no_bubblewrap_says_what_to_install(tmp_path: Path) -> None:
    done = gymcp("eval", BANK, env={"PATH": "/nonexistent"}, cwd=tmp_path)
    assert done.returncode == 2
    assert "bubblewrap" in done.stderr
    assert "--sandbox none" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_second_run_in_the_same_folder_loses_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    gymcp("eval", BANK, "--out", run, "--json")
    again = gymcp("eval", BANK, "--out", run)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
    other = gymcp("eval", BANK, "--agent", "null", "--out", run, "--resume")
    assert other.returncode == 2
    assert "agent was" in other.stderr
    with TrajectoryStore.open(run) as store:
        assert len(store.summaries()) == 3


def test_resume_starts_where_there_is_no_run(tmp_path: Path) -> None:
    done = gymcp("eval", BANK, "--out", tmp_path / "new", "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 3


@pytest.mark.parametrize("verb", ["grade", "report"])
def test_a_run_of_a_newer_version_is_refused(verb: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    gymcp("eval", BANK, "--out", run, "--json")
    database = sqlite3.connect(run / "trajectories.sqlite")
    database.execute("PRAGMA user_version = 99")
    database.close()
    done = gymcp(verb, run)
    assert done.returncode == 2
    assert "newer" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_sandbox_none_says_so_loudly(tmp_path: Path) -> None:
    done = gymcp("eval", BANK, "--sandbox", "none", "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["success"] == 1.0
    assert "UNCONFINED" in done.stderr
