"""Two hundred episodes behind each wall, every tenth with a server that breaks; `make nightly` plays five thousand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CHAOS = Path(__file__).parents[2] / "benchmarks" / "chaos.py"


def test_every_episode_ends_as_planned_and_nothing_is_left(require: Callable[[str], None]) -> None:
    require("bwrap")
    command = [sys.executable, str(CHAOS), "--wall", "forked", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = {row["metric"]: row["value"] for row in json.loads(done.stdout)["results"]}
    assert found["forked: episodes"] == 200
    assert found["forked: ended otherwise than planned"] == 0
    left = {name: value for name, value in found.items() if "more than before" in name or "left after" in name}
    assert (len(left), set(left.values())) == (6, {0})
