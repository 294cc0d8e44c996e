"""Runs the installed command as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

GYMCP = Path(sys.executable).with_name("gymcp")
BANK = Path(__file__).parents[2] / "examples" / "bank.py"


def gymcp(
    *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished command; bounded, without a terminal."""
    command = [str(GYMCP), *map(str, arguments)]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd, env=environment)
