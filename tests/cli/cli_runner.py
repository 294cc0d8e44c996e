"""Run the installed command as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import warm_command

GYMCP = Path(sys.executable).with_name("gymcp")
BANK = Path(__file__).parents[2] / "examples" / "bank.py"
TIMEOUT_S = 300


def gymcp(
    *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished command: bounded in time, without a terminal, from a process that has imported gymcp already."""
    environment = {**os.environ, **(env or {})}
    return warm_command.run(list(map(str, arguments)), cwd=cwd, env=environment, timeout_s=TIMEOUT_S)
