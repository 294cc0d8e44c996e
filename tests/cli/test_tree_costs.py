"""A budget of money for trees is refused if nothing that they use has a price."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import BANK, gymcp


@pytest.mark.parametrize("option", [("--branch", "ways=2,cost=0.5"), ("--search", "beam,cost=0.5")])
def test_a_budget_that_is_never_spent_is_one_error(option: tuple[str, str], tmp_path: Path) -> None:
    done = gymcp("eval", str(BANK), "--agent", "random", *option, "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "cost=0.5: neither a model nor a tool has a price, so it is never spent; see --prices" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_price_of_tools_is_enough(tmp_path: Path) -> None:
    costs = "ENV = replace(ENV, costs=ToolCosts(default=CallCost(money=1.0)))\n"
    head = "from dataclasses import replace\nfrom gymcp.envs.tool_costs import CallCost, ToolCosts\n"
    (tmp_path / "bank.py").write_text(f"{BANK.read_text()}\n{head}{costs}")
    words = ("--agent", "random", "--limit", "1", "--branch", "ways=2,cost=0.5", "--out", "run")
    done = gymcp("eval", "bank.py", *words, cwd=tmp_path)
    assert (done.returncode, "branches" in done.stdout) == (0, False), done.stdout + done.stderr
