"""The README's commands and code, as a reader types them. `make demo` and `make test` are typed by CI."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GYMCP = Path(sys.executable).with_name("gymcp")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_every_command_works_in_the_order_of_the_page(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith(".venv/bin/gymcp")]
    assert len(commands) == 21
    for command in commands:
        typed = command.replace(".venv/bin/gymcp", str(GYMCP), 1)
        done = subprocess.run(typed, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_the_python_code_works(tmp_path: Path) -> None:
    (code,) = [block for block in blocks("python") if "gymnasium.make" in block]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
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
