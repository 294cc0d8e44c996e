"""The README's commands and code, as a reader types them. `make demo` and `make test` are typed by CI.

The virtualenv that the pages activate is this one, as `.venv` of a folder.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import warm_command
from page_player import open_viewer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES = 110
"""Lines of two screens."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def typed_commands() -> list[str]:
    """Commands of the page that a reader types into a shell, in their order."""
    return [line for block in blocks("sh") for line in block.splitlines() if line.startswith("gymcp ")]


def test_every_command_works(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    assert len(typed_commands()) >= 6
    for command in typed_commands():
        _, *words = shlex.split(command, comments=True)
        if words[0] == "view":
            open_viewer(words[1:], tmp_path)
            continue
        done = warm_command.run(words, cwd=tmp_path, env=os.environ, timeout_s=600)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("page", "after"), [("README.md", ""), ("docs/start/install.md", "make demo\n")], ids=["readme", "install"]
)
def test_a_shell_in_a_clone_finds_the_command_as_the_page_says(page: str, after: str, tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    text = (ROOT / page).read_text(encoding="utf-8")
    (line,) = re.findall(rf"^{after}(\. \.venv/bin/activate)(?: +#.*)?$", text, flags=re.MULTILINE)
    done = subprocess.run(
        ["bash", "-eu", "-c", f"{line}\ncommand -v gymcp"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).resolve() == (Path(sys.prefix) / "bin" / "gymcp").resolve()


def test_the_page_is_two_screens() -> None:
    assert len(README.splitlines()) <= MAX_LINES


def test_every_target_of_make_is_one() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    typed = re.findall(r"\bmake ([a-z-]+) ", "\n".join(blocks("sh")))
    named = {*typed, *re.findall(r"`make ([a-z-]+)`", README)}
    assert named >= {"demo", "test", "docs"}
    assert [name for name in named if not re.search(rf"^{name}:", makefile, flags=re.MULTILINE)] == []


def test_the_python_code_works(tmp_path: Path) -> None:
    (code,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "final_report.pdf" in done.stdout
