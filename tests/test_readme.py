"""The README's commands and code, as a reader types them. `make demo` and `make test` are typed by CI."""

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
from page_blocks import GYMCP, open_viewer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def typed_blocks() -> list[list[str]]:
    """Commands of each block of the page that a reader types into a shell, in their order."""
    found = [[line for line in block.splitlines() if line.startswith(".venv/bin/gymcp")] for block in blocks("sh")]
    return [lines for lines in found if lines]


@pytest.mark.parametrize("commands", typed_blocks(), ids=lambda commands: " ".join(commands[0].split()[1:3]))
def test_every_command_of_a_block_works(commands: list[str], tmp_path: Path) -> None:
    for folder in ("examples", "recipes"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for command in commands:
        _, *words = shlex.split(command, comments=True)
        if words[0] == "view":
            open_viewer([str(GYMCP), *words], tmp_path)
            continue
        done = warm_command.run(words, cwd=tmp_path, env=os.environ, timeout_s=600)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_the_page_has_commands() -> None:
    assert sum(map(len, typed_blocks())) >= 20


def test_the_python_code_works(tmp_path: Path) -> None:
    (code,) = [block for block in blocks("python") if "gymnasium.make" in block]
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


def test_the_environment_on_the_page_is_the_example() -> None:
    (shown,) = [block for block in blocks("python") if "class Bank" in block]
    example = (ROOT / "examples" / "bank.py").read_text(encoding="utf-8").splitlines()
    assert [line for line in shown.splitlines() if line.strip() not in ("", "...") and line not in example] == []


def test_every_file_that_the_page_links_to_is_there() -> None:
    links = re.findall(r"\]\((?!http)([^)]+)\)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
