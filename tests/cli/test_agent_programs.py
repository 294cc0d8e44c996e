"""``--agent 'cmd:PROGRAM ARGS'`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp
from page_blocks import DOCS, play_page

PLAYER = Path(__file__).parents[1] / "agents" / "players" / "chat.py"


def test_the_page_plays(tmp_path: Path) -> None:
    assert play_page(DOCS / "agent-programs.md", tmp_path, replace={"examples/bank.py": str(BANK)}) == 2


def test_a_program_over_a_model_plays_and_is_recorded(tmp_path: Path) -> None:
    agent = f"cmd:python3 {PLAYER}"
    words = ("eval", BANK, "--agent", agent, "--policy", "tiny:compact", "--max-turns", "2", "--max-tokens", "8")
    done = gymcp(*words, "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 3
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["agent"], config["policy"], config["agent_sandbox"]) == (agent, "tiny:compact", "bwrap")
    assert len(config["agent_digest"]) == 64


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--agent", "cmd:"), "agent 'cmd:': no program; write cmd:PROGRAM ARGS"),
        (("--agent", "cmd:'"), "cannot be split into words"),
        (("--agent", "cmd:no-such-program"), "agent 'cmd:no-such-program': no such program"),
        (("--agent", "cmd:sh", "--agent-sandbox", "docker"), "--agent-sandbox: no 'docker'; have bwrap, none"),
        (("--agent", "cmd:sh {prompt}", "--agent-stdin"), "leave {prompt} out"),
        (("--agent", "cmd:sh", "--agent-mount", "/no/such"), "--agent-mount /no/such: no such file or folder"),
        (("--agent", "cmd:sh", "--agent-mount", "/"), "/ is too much to show to a program"),
        (("--agent", "oracle", "--agent-stdin"), "only for --agent 'cmd:PROGRAM ARGS'"),
    ],
)
def test_wrong_options_are_one_line(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = gymcp("eval", BANK, *words, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "run").exists()
