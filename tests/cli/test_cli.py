"""The command line on a small environment: its output, the files it writes, and every bad input."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import BANK, GYMCP, gymcp
from equipment import without_bubblewrap
from stderr_lines import errors

from gymcp.cli.evaluation.eval_run import make_run_folder
from gymcp.envs import load_env, load_spec
from gymcp.envs.audit.leaks import find_leaks
from gymcp.envs.suites.bfcl.suite import BFCL
from gymcp.errors import ConfigError, EnvInfraError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.paths import gymcp_home


def test_eval_prints_the_agreed_object_and_leaves_a_run(tmp_path: Path) -> None:
    done = gymcp("eval", BANK, "--agent", "oracle", "--trials", 2, "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    keys = ["env", "suite", "agent", "episodes", "scored", "success", "ci95", "outcomes", "tool_calls"]
    keys += ["attempts", "wall_s", "run"]
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
        ["check_env", "oracle", "null", "mutated", "gold", "reset", "repeat", "answers", "tools", "leaks"], True
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
            'target=PurePosixPath("/srv/two\\nlines: notes.txt"))])',
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
    assert 'first: /srv/two\nlines: notes.txt: {"source": "ann"' in leaks["detail"]


def test_suites_doctor_and_clean_list_their_findings(tmp_path: Path) -> None:
    assert "bfcl" in gymcp("suites").stdout
    assert [s["name"] for s in json.loads(gymcp("suites", "--json").stdout)["suites"]] == [
        "agentdojo",
        "backoffice",
        "backoffice_asking",
        "backoffice_choosing",
        "bfcl",
        "filesystem",
        "git",
        "looks",
        "memory",
        "rounds",
        "scienceworld",
        "sequential_thinking",
        "tau2",
        "tau2_dual",
        "textworld",
        "time",
        "toolshelf",
        "workbench",
        "workbench_asking",
    ]
    doctor = gymcp("doctor", "--json")
    assert doctor.returncode == 0, doctor.stdout
    # a cache of its own: in this one are all locks that were ever read, spoilt ones of tests among them
    assert gymcp("clean", env={"GYMCP_HOME": str(tmp_path)}).returncode == 0


IMPORTS = """
import sys
from dataclasses import replace
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Suite, Task
SERVER = ServerSpec(name="s", argv=("python3",))
TASK = Task(id="a", prompts=("x",))
SUITE = Suite(name="s", version="1", tasks=(TASK,))
ENV = EnvSpec(name="x", servers=(SERVER,), suite=SUITE, grade=final_state_equals())
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("suite=lambda: 1 / 0", "its suite raised env.py:13: ZeroDivisionError: division by zero"),
        ("suite=lambda: sys.exit(0)", "its suite raised env.py:13: SystemExit: 0"),
        ("suite=[TASK]", "its suite must be a gymcp.Suite"),
        ("suite=replace(SUITE, tasks=())", "its suite has no tasks"),
        ("suite=replace(SUITE, tasks=(TASK, TASK))", "two tasks have the id 'a'"),
        ("suite=replace(SUITE, tasks=(replace(TASK, prompts=()),))", "task 'a': its prompts must be"),
        ("suite=replace(SUITE, tasks=(replace(TASK, initial_state={1, 2}),))", "its initial_state is not JSON"),
        (
            'suite=replace(SUITE, tasks=(replace(TASK, user="x"),))',
            "its user must be a gymcp.UserScript, not 'x'",
        ),
        (
            "suite=replace(SUITE, tasks=(replace(TASK, offer=None),))",
            "its offer must be a gymcp.ToolOffer, not None",
        ),
        ("servers=()", "its servers must be a tuple with at least one ServerSpec, not ()"),
        ('servers=[{"argv": "x"}]', "its servers must be a tuple"),
        ("servers=(SERVER, SERVER)", "two servers are named 's'"),
        ("servers=lambda: open('/nowhere')", "its servers raised env.py:13: FileNotFoundError"),
        ('servers=(replace(SERVER, argv="python3 x.py"),)', "server 's': its argv must be a tuple of texts"),
        ("servers=(replace(SERVER, argv=()),)", "its argv is empty"),
        ("grade=5", "its grade must be a function, not 5"),
        ('anchor="foo"', "no anchor 'foo'; have world, world+observation, world+history"),
        ('name="x/../y"', "its name must be made of letters"),
        ("version=sys.exit(0)", "env.py:13: SystemExit: 0"),
    ],
)
def test_a_malformed_environment_is_one_line(change: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "env.py"
    file.write_text(f"{IMPORTS}\nENV = replace(ENV, {change})")
    with pytest.raises(ConfigError) as caught:
        load_env(load_spec(str(file)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_is_graded_from_another_folder_and_resumed_under_another_spelling(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "bank.py").write_text(BANK.read_text())
    assert gymcp("eval", "bank.py", "--out", "run", "--json", cwd=tmp_path).returncode == 0
    assert gymcp("grade", "../run", "--json", cwd=tmp_path / "sub").returncode == 0
    again = gymcp("eval", "../bank.py", "--out", "../run", "--resume", "--json", cwd=tmp_path / "sub")
    assert again.returncode == 0, again.stderr


def test_an_edited_environment_is_refused_by_grade(tmp_path: Path) -> None:
    env, run = tmp_path / "bank.py", tmp_path / "run"
    env.write_text(BANK.read_text())
    assert gymcp("eval", env, "--out", run, "--json").returncode == 0
    env.write_text(BANK.read_text().replace("(5, 30, 100)", "(5, 30)"))
    graded = gymcp("grade", run, "--env", env)
    assert (graded.returncode, "recorded with suite_digest" in graded.stderr) == (2, True)


def test_eval_prints_why_an_episode_was_lost(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(
        IMPORTS + "raise_it = 'import sys; sys.exit(\"\\x1b[31m[bold]no\")'\n"
        "ENV = replace(ENV, servers=(replace(SERVER, argv=('python3', '-c', raise_it)),))"
    )
    done = gymcp("eval", "env.py", "--agent", "null", "--out", "run", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("first env_infra: a trial 0: ")]
    assert line.endswith("its last words: [bold]no")  # no markup, no terminal escape
    assert "s in 3 attempts at 1 episodes" in done.stdout


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = {make_run_folder(tmp_path / "runs" / "x") for _ in range(3)}
    assert {folder.name for folder in folders} == {"x", "x-2", "x-3"}


def test_a_suite_that_was_half_installed_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "suites" / "bfcl" / BFCL.version).mkdir(parents=True)
    (tmp_path / "servers" / ".time-0123").mkdir(parents=True)
    (tmp_path / "servers" / "time-0123").mkdir(parents=True)
    done = gymcp("suites", "--json", env={"GYMCP_HOME": str(tmp_path)})
    third_party = ["filesystem", "git", "memory", "scienceworld", "sequential_thinking", "time", "toolshelf"]
    fetched = ["agentdojo", "bfcl", "tau2", "tau2_dual", "textworld", "workbench", "workbench_asking", *third_party]
    found = {row["name"]: row["installed"] for row in json.loads(done.stdout)["suites"]}
    here = ["backoffice", "backoffice_asking", "backoffice_choosing", "looks", "rounds"]
    assert found == {**dict.fromkeys(here, True), **dict.fromkeys(fetched, False)}


@pytest.mark.parametrize(
    "where", [{"GYMCP_HOME": "/proc/x"}, {"GYMCP_HOME": "/etc/passwd"}, {"HOME": "/proc/x", "XDG_CACHE_HOME": ""}]
)
@pytest.mark.parametrize("env", [BANK, "bfcl", "time"])
def test_an_unwritable_cache_is_one_line(env: object, where: dict[str, str], tmp_path: Path) -> None:
    done = gymcp("eval", env, env={"GYMCP_HOME": "", **where}, cwd=tmp_path)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1), done.stderr
    assert "set GYMCP_HOME to a folder that can be written" in done.stderr


INTERRUPTED_IMPORT = """
import sys
from gymcp.cli.main import main

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
main()
"""


def test_ctrl_c_before_anything_runs_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text("raise KeyboardInterrupt")
    importing = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False, timeout=60
    )
    starting = gymcp("eval", "env.py", cwd=tmp_path)
    assert [(done.returncode, "Traceback" in done.stderr) for done in (importing, starting)] == [(130, False)] * 2


def test_a_leak_search_that_does_not_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymcp.envs.audit.leaks.SEARCH_TIMEOUT_S", 0.0)
    with pytest.raises(EnvInfraError, match="leak test of server 'bank': not done within 0 s"):
        asyncio.run(find_leaks(load_env(load_spec(str(BANK))), get_sandbox("bwrap")))


def test_the_cache_folder_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GYMCP_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert gymcp_home() == tmp_path / "cache" / "gymcp"


def test_check_reports_checks_that_do_not_apply(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(
        "from dataclasses import replace\n"
        + BANK.read_text()
        .replace("final_state_equals()", "answer_equals(target_key='answer')")
        .replace("import final_state_equals", "import answer_equals")
        + "\nTALK = Task(id='talk', prompts=('Say yes.',), target={'answer': 'yes'},"
        " initial_state={'accounts': {}}, gold=(GoldTurn(final_text='yes'),))\n"
        "ENV = replace(ENV, suite=replace(ENV.suite, tasks=(TALK,)))\n"
    )
    done = gymcp("check", "talk.py", "--sandbox", "none", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert {name for name, check in checks.items() if not check["applies"]} == {"mutated", "gold", "answers", "leaks"}
    assert checks["leaks"]["detail"] == "not applicable: nothing is confined"


def test_missing_bubblewrap_names_the_package_to_install(tmp_path: Path) -> None:
    command = [sys.executable, str(GYMCP), "eval", str(BANK)]
    done = subprocess.run(
        command, env=without_bubblewrap(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "bubblewrap" in done.stderr
    assert "--sandbox none" in done.stderr
    assert len(errors(done.stderr)) == 1


def test_resume_starts_a_run_if_there_is_none(tmp_path: Path) -> None:
    done = gymcp("eval", BANK, "--out", tmp_path / "new", "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 3


def test_the_sandbox_none_prints_a_warning(tmp_path: Path) -> None:
    done = gymcp("eval", BANK, "--sandbox", "none", "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["success"] == 1.0
    assert "UNCONFINED" in done.stderr
