"""Upstream's classes run once, at the suite's installation: without a sandbox only if the user asks for that."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import warm_command
from equipment import without_bubblewrap
from length import IS_FULL
from stderr_lines import errors

from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.envs.suites.upstream.verified_cache import read_checked
from gymcp.mcp_servers.packages.install_folder import write_manifest

TASKS_PER_CATEGORY = 200 if IS_FULL else 10


@pytest.fixture
def unfinished_install(files: SuiteFiles, tmp_path: Path) -> SuiteFiles:
    """A few tasks of the suite in a cache of the test's own, without the targets, which running its code computes."""
    there = replace(files, root=tmp_path / "home" / "suites" / "bfcl" / files.root.name)
    shutil.copytree(files.root, there.root)
    for questions in (there.private / "questions").iterdir():
        lines = questions.read_text(encoding="utf-8").splitlines(keepends=True)
        questions.write_text("".join(lines[:TASKS_PER_CATEGORY]), encoding="utf-8")
    write_manifest(there.root)
    return there


def _gymcp(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run gymcp as on a machine without bubblewrap."""
    env = without_bubblewrap(tmp_path) | {"GYMCP_HOME": str(tmp_path / "home")}
    command = [sys.executable, str(warm_command.GYMCP), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("words", [("suites", "install", "bfcl"), ("eval", "bfcl", "--sandbox", "none")])
def test_without_bubblewrap_nothing_of_upstream_is_run_or_fetched(words: tuple[str, ...], tmp_path: Path) -> None:
    done = _gymcp(tmp_path, *words)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1), done.stderr
    assert "upstream's classes run once, for the targets, and not without a sandbox: bwrap: not found" in done.stderr
    assert "gymcp suites install bfcl --sandbox docker, or --sandbox none" in done.stderr
    assert not (tmp_path / "home" / "suites").exists()


def test_an_install_without_a_sandbox_has_the_same_tasks(
    files: SuiteFiles, unfinished_install: SuiteFiles, tmp_path: Path
) -> None:
    """Compared for the first 10 tasks of each category; for all in `benchmarks/full_tests.py`."""
    done = _gymcp(tmp_path, "suites", "install", "bfcl", "--sandbox", "none")
    assert done.returncode == 0, done.stderr
    assert "UNCONFINED" in done.stderr
    made = json.loads(read_checked("bfcl", unfinished_install.tasks))
    tasks = {task["id"]: task for task in json.loads(read_checked("bfcl", files.tasks))}
    assert len(made) == 4 * TASKS_PER_CATEGORY
    assert made == [tasks[task["id"]] for task in made]
