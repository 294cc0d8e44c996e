"""The installed files of a suite are used only as they were installed, and can be installed again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cli_runner import gymcp
from stderr_lines import errors

from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.envs.suites.upstream.verified_cache import read_checked, verified_folder, write_checked
from gymcp.errors import IntegrityError
from gymcp.mcp_servers.packages.install_folder import InstallDrift
from gymcp.paths import gymcp_home
from gymcp.process_owner import is_unlocked


def test_a_folder_is_hashed_once_and_held_and_let_go_if_it_has_changed(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "tool.py").write_text("x = 1")

    folder = verified_folder("mine", tmp_path / "mine-1", make)
    assert not is_unlocked(folder)
    (folder / "tool.py").write_text("x = 2")
    assert verified_folder("mine", folder, make) == folder  # this process has seen that it was right

    other = verified_folder("mine", tmp_path / "mine-2", make).rename(tmp_path / "moved")
    (other / "tool.py").write_text("x = 2")
    message = r"suite 'mine': installed file 'tool.py' has changed; run: gymcp suites install mine, or remove "
    with pytest.raises(InstallDrift, match=message) as caught:
        verified_folder("mine", other, make)
    assert (caught.value.folder, is_unlocked(tmp_path / "mine-1")) == (other, False)


def test_checked_content_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    write_checked(tmp_path / "tasks.json", b"[1]")
    assert read_checked("mine", tmp_path / "tasks.json") == b"[1]"
    (tmp_path / "tasks.json").write_bytes((tmp_path / "tasks.json").read_bytes().replace(b"[1]", b"[2]"))
    with pytest.raises(IntegrityError, match=r"suite 'mine': .*tasks.json has changed; remove it, then run: gymcp"):
        read_checked("mine", tmp_path / "tasks.json")


@pytest.fixture
def home(files: SuiteFiles, tmp_path: Path) -> Path:
    """A cache of the test's own, with BFCL in it."""
    suites = tmp_path / "home" / "suites" / "bfcl"
    shutil.copytree(files.root, suites / files.root.name)
    shutil.copy(files.tasks, suites)
    shutil.copytree(gymcp_home() / "wheels", tmp_path / "home" / "wheels", ignore=shutil.ignore_patterns(".*"))
    return tmp_path / "home"


def test_a_suite_that_has_changed_is_refused_and_installed_again(home: Path, files: SuiteFiles) -> None:
    changed = home / "suites" / "bfcl" / files.root.name / "server" / "bfcl_eval" / "__init__.py"
    changed.write_text("raise SystemExit")
    refused = _gymcp(home, "eval", "bfcl", "--limit", "1", "--json")
    assert (refused.returncode, len(errors(refused.stderr))) == (2, 1), refused.stderr
    assert (
        "suite 'bfcl': installed file 'server/bfcl_eval/__init__.py' has changed; run: gymcp suites" in refused.stderr
    )
    mended = _gymcp(home, "suites", "install", "bfcl")
    assert mended.returncode == 0, mended.stderr
    assert "installing again: suite 'bfcl': installed file" in mended.stdout
    assert changed.read_text() == (files.root / "server" / "bfcl_eval" / "__init__.py").read_text()
    assert _gymcp(home, "eval", "bfcl", "--limit", "1", "--json").returncode == 0


def _gymcp(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return gymcp(*words, cwd=home, env={"GYMCP_HOME": str(home)})
