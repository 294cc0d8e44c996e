"""Completion in the shell: environments, agents, presets, suites and run folders, as bash and zsh ask for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_runner import GYMCP, gymcp
from test_start import heavy, imports_of

from gymcp.cli.completion import MAX_OFFERED, complete_run, list_environments
from gymcp.cli.known_names import PRESETS


def bash(words: str, folder: Path) -> list[str]:
    """Values that bash is offered for the last of the words."""
    parts = words.split(" ")
    env = {"_GYMCP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(parts) - 1)}
    env["HOME"] = str(folder)
    done = gymcp(env=env, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def zsh(words: str, folder: Path) -> str:
    """Answer that zsh evaluates for the last of the words."""
    done = gymcp(env={"_GYMCP_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words}, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with two runs, a training run, an environment file, and things that are none of these."""
    for name in ("runs/a", "runs/b", "old/deep/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "runs" / "train-x").mkdir()
    (tmp_path / "runs" / "train-x" / "training.json").write_text("{}")
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "bank.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("gymcp ev", ["eval"]),
        ("gymcp servers sy", ["sync"]),
        ("gymcp eval ba", ["backoffice", "backoffice_asking", "backoffice_choosing", "bank.py"]),
        ("gymcp check back", ["backoffice", "backoffice_asking", "backoffice_choosing"]),
        ("gymcp suites install tau", ["tau2", "tau2_dual"]),
        ("gymcp eval bfcl --agent a", ["adaptive", "asks_late", "always_asks"]),
        ("gymcp eval bfcl --sandbox ", ["bwrap", "docker", "none"]),
        ("gymcp credit runs/a --preset g", ["grpo", "gigpo", "gdpo", "graphgpo", "g2po", "gagpo", "gspo"]),
        ("gymcp credit runs/a --preset b", ["bnpo", "bank.py:"]),
        ("gymcp export runs/a --preset re", ["reinforce_pp", "rebn"]),
        ("gymcp export runs/a --format p", ["parquet"]),
        ("gymcp view runs/", ["runs/a", "runs/b", "runs/train-x"]),
        ("gymcp report ", ["old/deep/c", "runs/a", "runs/b", "runs/train-x"]),
        ("gymcp compare runs/a runs/b", ["runs/b"]),
        ("gymcp judge run runs/a", ["runs/a"]),
        ("gymcp view ./ru", ["./runs/a", "./runs/b", "./runs/train-x"]),
        ("gymcp view ~/ru", ["~/runs/a", "~/runs/b", "~/runs/train-x"]),
        ("gymcp view ./runs/../old/", ["./runs/../old/deep/c"]),
        ("gymcp eval ./ba", ["./bank.py"]),
        ("gymcp eval ~/ba", ["~/bank.py"]),
        ("gymcp view ~no-such-user/", []),
        ("gymcp grade nowhere/", []),
        ("gymcp eval bfcl --max-to", ["--max-tokens"]),
    ],
)
def test_bash_is_offered(words: str, offered: list[str], folder: Path) -> None:
    assert bash(words, folder) == offered


def test_zsh_is_offered_the_same_with_help(folder: Path) -> None:
    offered = "\n".join(f'"{name}"' for name in ("backoffice", "backoffice_asking", "backoffice_choosing", "bank.py"))
    assert zsh("gymcp eval ba", folder) == f"_arguments '*: :(({offered}))'"
    assert '"report":"Write the report of a run, or one report' in zsh("gymcp rep", folder)
    presets, environments = zsh("gymcp credit runs/a --preset ", folder), zsh("gymcp eval ", folder)
    assert [name for name in PRESETS if f'"{name}"' not in presets] == []
    assert [name for name in list_environments() if f'"{name}"' not in environments] == []


def test_a_real_bash_completes_after_it_has_read_the_script(folder: Path) -> None:
    found = shutil.which("bash")
    assert found is not None
    script = gymcp("--show-completion", env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": ""})
    source = gymcp(env={"_GYMCP_COMPLETE": "source_bash"}).stdout
    assert script.returncode in (0, 1)  # 1: the test runs under no shell that it knows
    name = next(line.split("(")[0] for line in source.splitlines() if "()" in line)
    typed = f"{source}\nCOMP_WORDS=(gymcp eval back) COMP_CWORD=2\n{name} gymcp\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    path = f"{GYMCP.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [found, "--norc", "-c", typed],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PATH": path},
    )
    assert done.stdout.split() == ["backoffice", "backoffice_asking", "backoffice_choosing"], done.stderr


def test_completion_imports_nothing_that_runs(folder: Path) -> None:
    env = {"_GYMCP_COMPLETE": "complete_bash", "COMP_WORDS": "gymcp eval b", "COMP_CWORD": "2"}
    modules, printed = imports_of([()], folder, env)[()]
    assert "backoffice" in printed
    assert heavy(modules) == set()


def test_runs_are_found_below_absolute_paths_and_never_in_an_unreadable_folder(folder: Path) -> None:
    assert complete_run(f"{folder}/runs/") == [f"{folder}/runs/{name}" for name in ("a", "b", "train-x")]
    assert complete_run("/proc/1/") == []
    for number in range(MAX_OFFERED + 5):
        (folder / "many" / f"{number:03}").mkdir(parents=True)
        (folder / "many" / f"{number:03}" / "run.json").write_text("{}")
    assert len(complete_run(f"{folder}/many/")) == MAX_OFFERED
