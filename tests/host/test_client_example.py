"""`examples/host_client.py`: a client whose episodes end before it has said its last."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import TIMEOUT_S
from hosting import BANK, TOKEN, hosting

from gymcp.store import TrajectoryStore

CLIENT = Path(__file__).parents[2] / "examples" / "host_client.py"
TRANSFER = '    await tools.call_tool("transfer", {"source": "ann", "target": "bob", "amount": amount})\n'


@pytest.mark.parametrize("calls", [1, 2])
def test_a_budget_that_is_spent_ends_the_episode_with_its_verdict(calls: int, tmp_path: Path) -> None:
    """One step is allowed: what the agent says then is refused, and so is a second call, with an error of MCP."""
    short = replace(BANK, limits=replace(BANK.limits, steps=1))
    source = CLIENT.read_text(encoding="utf-8")
    assert TRANSFER in source
    client = tmp_path / "client.py"
    client.write_text(source.replace(TRANSFER, calls * TRANSFER), encoding="utf-8")
    with hosting(short, out=tmp_path / "hosted") as hosted:
        done = subprocess.run(
            [sys.executable, client, hosted.address, "bank"],
            env={**os.environ, "GYMCP_HOST_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"pay_back_{debt} budget_exhausted 1.0" for debt in (5, 30, 100)]
    with TrajectoryStore.open(tmp_path / "hosted" / "bank-payer") as store:
        assert [row.usage.tool_calls for row in store.summaries()] == [1, 1, 1]
