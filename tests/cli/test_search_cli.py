"""`gymcp eval --search`: what a run says of its search, and the lines that refuse one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp

UPPER_BOUND = "the search saw the verdicts of its episodes"


@pytest.mark.parametrize(
    ("text", "value", "bound"),
    [("best_of_n,width=2", "agreement", None), ("dfsdt,value=verdict,episodes=2", "verdict", UPPER_BOUND)],
)
def test_a_run_says_which_search_has_chosen_and_if_it_saw_verdicts(
    text: str, value: str, bound: str | None, tmp_path: Path
) -> None:
    done = gymcp("eval", BANK, "--agent", "random", "--limit", 2, "--search", text, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (config["search"], config["search_value"], config.get("upper_bound")) == (text, value, bound)
    assert summary.get("upper_bound") == bound
    said = " ".join(done.stdout.split())
    assert f"search {text.partition(',')[0]}: 0 of 2 solved by the episode that was chosen, in 4 episodes" in said
    report = (tmp_path / "run" / "report.html").read_text()
    for page in (said, report):
        assert ("success is an upper bound" in page) == (bound is not None)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--search", "best_of_n", "--branch", "ways=2"), "--branch and --search: a search decides itself"),
        (("--search", "mcts,rollouts=0"), "search mcts: rollouts must be 1 or more, not 0"),
    ],
)
def test_a_search_with_branches_or_without_episodes_is_refused(
    options: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    done = gymcp("eval", BANK, "--agent", "random", *options, "--out", tmp_path / "run")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert why in done.stderr
    assert not (tmp_path / "run").exists()
