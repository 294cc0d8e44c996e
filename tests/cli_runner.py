"""Run the installed command as a user does; `inner_command` runs it in the process of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import warm_command

GYMCP = Path(sys.executable).with_name("gymcp")
BANK = Path(__file__).parents[1] / "examples" / "bank.py"
TIMEOUT_S = 300


def gymcp(
    *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished command: bounded in time, without a terminal, from a process that has imported gymcp already."""
    environment = {**os.environ, **(env or {})}
    return warm_command.run(list(map(str, arguments)), cwd=cwd, env=environment, timeout_s=TIMEOUT_S)


def path_without(*names: str, tmp_path: Path) -> str:
    """A folder of links to the programs of the PATH, without some."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in reversed(os.environ["PATH"].split(":")):
        for found in Path(place).iterdir() if Path(place).is_dir() else ():
            if found.name not in names:
                (folder / found.name).unlink(missing_ok=True)
                (folder / found.name).symlink_to(found.resolve())
    return str(folder)
