"""Upstream's classes run once, at the suite's installation: without a sandbox only if the user asks for that."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import warm_command
from equipment import without_bubblewrap
from stderr_lines import errors

from gymcp.envs.suites.upstream.file_layout import SuiteFiles


@pytest.fixture
def unfinished_install(files: SuiteFiles, tmp_path: Path) -> SuiteFiles:
    """The suite in a cache of the test's own, without the tasks, which running its code computes."""
    there = replace(files, root=tmp_path / "home" / "suites" / "bfcl" / files.root.name)
    shutil.copytree(files.root, there.root)
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
    done = _gymcp(tmp_path, "suites", "install", "bfcl", "--sandbox", "none")
    assert done.returncode == 0, done.stderr
    assert "UNCONFINED" in done.stderr
    assert unfinished_install.tasks.read_bytes() == files.tasks.read_bytes()
