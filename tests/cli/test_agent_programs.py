"""``--agent 'cmd:PROGRAM ARGS'`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp
from page_blocks import DOCS
from page_player import play_page

from gymcp.trainers.recipe.load import load_recipe

PLAYER = Path(__file__).parents[1] / "agents" / "players" / "chat.py"


def test_the_page_plays(tmp_path: Path) -> None:
    assert play_page(DOCS / "agent-programs.md", tmp_path, replace={"examples/bank.py": str(BANK)}) == 3
    assert load_recipe(tmp_path / "program.toml").rollout.agent_mounts == (str(tmp_path / "notes"),)


def test_files_of_a_command_in_a_recipe_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, names in ((here, ("mine.py", "own.toml", "python3")), (there, ("mine.py", "bin/run", "python3"))):
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("")
    (there / "chat").mkdir()
    recipe = there / "program.toml"
    monkeypatch.chdir(here)

    def load(command: str, *typed: tuple[str, str]) -> str:
        recipe.write_text(f'env = "backoffice"\n[rollout]\nagent = "cmd:{command}"\n')
        return load_recipe(recipe, typed).rollout.agent

    assert load("python3 mine.py own.toml -m chat") == f"cmd:python3 {there}/mine.py own.toml -m chat"
    assert load("bin/run 'two words' {prompt}") == f"cmd:{there}/bin/run 'two words' '{{prompt}}'"
    assert load("python3 -V") == "cmd:python3 -V"
    assert load("python3 -V", ("rollout.agent", "cmd:python3 mine.py")) == f"cmd:python3 {here}/mine.py"


def test_a_program_over_a_model_plays_and_is_recorded(tmp_path: Path) -> None:
    agent = f"cmd:python3 {PLAYER}"
    words = ("eval", BANK, "--agent", agent, "--policy", "tiny:compact", "--max-turns", "2", "--max-tokens", "8")
    done = gymcp(*words, "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 3
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["agent"], config["policy"], config["agent_sandbox"]) == (agent, "tiny:compact", "bwrap")
    assert len(config["agent_digest"]) == 64


def test_the_last_words_of_a_program_are_on_the_terminal(tmp_path: Path) -> None:
    agent = "cmd:sh -c 'echo no way home >&2; exit 3'"
    done = gymcp("eval", BANK, "--agent", agent, "--limit", "1", "--out", tmp_path / "run")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("first agent_error: ")]
    assert line.endswith("trial 0: the program failed: it ended with status 3; its last words: no way home")


BY_HEART = """import json, os, re, sys, urllib.request

server = json.load(open(os.environ["GYMCP_MCP_CONFIG"]))["mcpServers"]["gymcp"]
pay = json.load(open(MOUNTED))
for line in sys.stdin:
    pay["arguments"]["amount"] = int(re.findall("[0-9]+", json.loads(line)["prompt"])[0])
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": pay}).encode()
    headers = {**server["headers"], "Content-Type": "application/json", "Accept": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(server["url"], body, headers)) as answer:
        print(json.dumps({"text": answer.read().decode()}), flush=True)
"""
"""A program that reads its messages as lines, and the call that it makes in a file that its command does not name."""


def test_a_program_is_stressed_with_the_options_of_eval(tmp_path: Path) -> None:
    mounted, program = tmp_path / "data" / "call.json", tmp_path / "program" / "by_heart.py"
    for file, text in (
        (mounted, '{"name": "transfer", "arguments": {"source": "ann", "target": "bob"}}'),
        (program, BY_HEART.replace("MOUNTED", repr(str(mounted)))),
    ):
        file.parent.mkdir()
        file.write_text(text)
    words = ("stress", BANK, "--agent", f"cmd:python3 {program}", "--agent-stdin", "--agent-mount", mounted)
    done = gymcp(*words, "--stressor", "renamed", "--stressor", "noisy", "--limit", "1", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["agent"], told["score"]) == (f"cmd:python3 {program}", 1.0)
    assert [(row["stressor"], row["drop"]) for row in told["stressors"]] == [("renamed", 1.0), ("noisy", 0.0)]
    done = gymcp("stress", BANK, "--agent-stdin")
    assert (done.returncode, "only for --agent 'cmd:PROGRAM ARGS'" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--agent", "cmd:"), "agent 'cmd:': no program; write cmd:PROGRAM ARGS"),
        (("--agent", "cmd:'"), "cannot be split into words"),
        (("--agent", "cmd:no-such-program"), "agent 'cmd:no-such-program': no such program"),
        (("--agent", "cmd:python3 gone.py"), "agent 'cmd:python3 gone.py': no such file: gone.py (in "),
        (("--agent", "cmd:sh", "--agent-sandbox", "docker"), "no sandbox 'docker' for programs; have bwrap, none"),
        (("--agent", "cmd:sh {prompt}", "--agent-stdin"), "leave {prompt} out"),
        (("--agent", "cmd:sh", "--agent-mount", "/no/such"), "it cannot be shown /no/such: no such file or folder"),
        (("--agent", "cmd:sh", "--agent-mount", "/"), "/ is too much to show to a program"),
        (("--agent", "oracle", "--agent-stdin"), "only for --agent 'cmd:PROGRAM ARGS'"),
        (
            ("--agent", "cmd:sh", "--policy", "tiny", "--overflow", "drop"),
            "--system, --overflow: a program writes its own prompts; leave them out",
        ),
    ],
)
def test_wrong_options_are_one_line(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = gymcp("eval", BANK, *words, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "run").exists()
