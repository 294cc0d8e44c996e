"""Agents and environments of the user on the command line: files, plug-ins, failures, resumption."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import warm_command
from cli_runner import BANK, GYMCP, TIMEOUT_S, gymcp
from page_blocks import DOCS
from page_player import play_page

from gymcp.store import TrajectoryStore

EXAMPLE = BANK.with_name("agents.py")
CRASHING = """
from gymcp.types import Action


class Agent:
    def __init__(self, task, seed):
        self.task = task

    async def act(self, observation):
        if self.task.id == "pay_back_30":
            return {}["missing"]
        return Action(text="done")
"""


def config(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "run.json").read_text())["config"]
    return found


def test_an_agent_of_the_user_plays(tmp_path: Path) -> None:
    done = gymcp("eval", BANK, "--agent", f"{EXAMPLE}:Payer", "--out", tmp_path / "run", "--json")
    assert (done.returncode, json.loads(done.stdout)["success"]) == (0, 1.0), done.stderr
    found = config(tmp_path / "run")
    assert (found["agent"], found["agent_source"]) == ("agents.py:Payer", f"{EXAMPLE}:Payer")
    assert len(str(found["agent_digest"])) == 64


def test_an_agent_over_a_model_records_the_tokens_of_the_model(tmp_path: Path) -> None:
    model = ("--policy", "tiny:compact", "--max-tokens", "8", "--max-turns", "2", "--limit", "2")
    for name, agent in (("own", f"{EXAMPLE}:careful"), ("react", "react")):
        done = gymcp("eval", BANK, "--agent", agent, *model, "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
    runs = []
    for name in ("own", "react"):
        with TrajectoryStore.open(tmp_path / name) as store:
            runs.append({record.task: [step.sampled for step in record.steps] for record in store.iter_trajectories()})
    assert all(sample is not None for run in runs for samples in run.values() for sample in samples)
    first = [
        {task: samples[0] and (samples[0].prompt_ids, samples[0].ids) for task, samples in run.items()} for run in runs
    ]
    assert first[0] == first[1], "the same seed and prompt give the same tokens"
    assert config(tmp_path / "own")["agent"] == "agents.py:careful"
    assert config(tmp_path / "own")["policy"] == "tiny:compact"


def test_an_agent_that_raises_ends_its_own_episode_only(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CRASHING)
    done = gymcp("eval", BANK, "--agent", "mine.py:Agent", "--out", "run", "--trials", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcomes"] == {"agent_error": 2, "scored": 4}
    assert done.stderr.count("Traceback") == 1
    assert 'mine.py", line 11, in act' in done.stderr
    assert "guarded_agent.py" not in done.stderr
    with TrajectoryStore.open(tmp_path / "run") as store:
        rows = [row for row in store.summaries(latest=False) if row.task == "pay_back_30"]
    assert [(row.score, row.attempt) for row in rows] == [(0.0, 0)] * 2
    with TrajectoryStore.open(tmp_path / "run") as store:
        assert store.load(rows[0].id).reason == "the agent raised mine.py:11: KeyError: 'missing'"


def test_a_run_whose_agent_has_changed_is_not_resumed(tmp_path: Path) -> None:
    words = ("eval", BANK, "--agent", "mine.py:Agent", "--out", "run", "--resume")
    (tmp_path / "mine.py").write_text(CRASHING)
    assert gymcp(*words, cwd=tmp_path).returncode == 0
    assert gymcp(*words, "--trials", "2", cwd=tmp_path).returncode == 0
    (tmp_path / "mine.py").write_text(CRASHING.replace("done", "well"))
    changed = gymcp(*words, "--trials", "3", cwd=tmp_path)
    assert changed.returncode == 2
    assert "was started with another config: agent_digest was" in changed.stderr


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        (("--agent", "nobody"), "no agent 'nobody'; have oracle, null, mutated, random"),
        (("--agent", "gone.py:Agent"), "no file 'gone.py'"),
        (("--agent", "mine.py"), "name the agent in the file: mine.py:NAME"),
        (("--agent", "mine.py:Agnet"), "defines no 'Agnet'; have Agent"),
        (("--agent", "mine.py:Agent", "--policy", "tiny"), "--policy: agent 'mine.py:Agent' has no model"),
        (("--agent", f"{EXAMPLE}:careful"), "agent 'agents.py:careful' needs a model: --policy tiny"),
        (("--agent", "bad.py:Agent"), "bad.py:1: ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("verb", ["eval", "stress"])
def test_an_unusable_agent_is_one_line(verb: str, agent: tuple[str, ...], says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CRASHING)
    (tmp_path / "bad.py").write_text("1 / 0\n")
    done = gymcp(verb, BANK, *agent, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_agent_of_the_user_is_stressed() -> None:
    done = gymcp(
        "stress", BANK, "--agent", f"{EXAMPLE}:Payer", "--stressor", "renamed", "--stressor", "noisy", "--json"
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["agent"], told["score"]) == ("agents.py:Payer", 1.0)
    assert [(row["stressor"], row["drop"]) for row in told["stressors"]] == [("renamed", 1.0), ("noisy", 0.0)]


LOSSY = """
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.errors import PolicyInfraError

class Silent:
    async def act(self, observation):
        raise PolicyInfraError("no model")

def lossy(task, seed):
    return Silent() if "30" in task.prompts[0] else SCRIPTED["oracle"](task, seed)
"""


def test_stress_has_no_score_and_no_drop_if_too_few_tasks_have_a_score(tmp_path: Path) -> None:
    (tmp_path / "lossy.py").write_text(LOSSY)
    words = ("stress", BANK, "--agent", f"{tmp_path / 'lossy.py'}:lossy", "--stressor", "noisy", "--json")
    told = json.loads(gymcp(*words).stdout)
    (row,) = told["stressors"]
    for part in (told, row):
        assert (part["tasks"], part["scored"], part["score"], part["bounds"]) == (3, 2, None, [2 / 3, 1.0])
        assert part["refused"].startswith("2 of 3 tasks have a score, below the floor of 95 %")
    assert (row["drop"], row["paired"]) == (None, 2)
    told = json.loads(gymcp(*words, "--min-coverage", "0.5").stdout)
    assert (told["score"], told["refused"], told["stressors"][0]["drop"]) == (1.0, None, 0.0)


def test_a_model_is_stressed() -> None:
    done = gymcp("stress", BANK, "--policy", "tiny:compact", "--max-tokens", "4", "--limit", "1", "--stressor", "noisy",
        "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["agent"], told["policy"], told["tasks"]) == ("react", "tiny:compact", 1)


@pytest.fixture
def packages(tmp_path: Path) -> dict[str, str]:
    """Environment variables under which one package brings what works, and another what does not."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "shop_plugin.py").write_text(BANK.read_text().replace('name="bank"', 'name="shop"'))
    (folder / "payer_plugin.py").write_text(EXAMPLE.read_text())
    (folder / "bad_plugin.py").write_text("raise RuntimeError('boom')\n")
    for name, entries in (
        ("good", "[gymcp.envs]\nshop = shop_plugin:ENV\n[gymcp.agents]\npayer = payer_plugin:Payer\n"),
        ("bad", "[gymcp.envs]\nbroken = bad_plugin:ENV\nbfcl = bad_plugin:ENV\n[gymcp.agents]\ndead = bad_plugin:A\n"),
    ):
        about = folder / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(entries)
    return {**os.environ, "PYTHONPATH": str(folder)}


def start(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """The command with the packages of its PYTHONPATH."""
    return warm_command.run(words, cwd=None, env=env, timeout_s=TIMEOUT_S, program="packaged_command")


def test_packages_bring_environments_and_agents(packages: dict[str, str], tmp_path: Path) -> None:
    """Also to a process that is started with them; the other tests add them to one that has been started."""
    command = [str(GYMCP), "eval", "shop", "--agent", "payer", "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run(command, env=packages, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert (done.returncode, json.loads(done.stdout)["success"]) == (0, 1.0), done.stderr
    found = config(tmp_path / "run")
    assert (found["env"], found["source"], found["agent"]) == ("shop", "shop", "payer_plugin:Payer")
    assert start(packages, "grade", str(tmp_path / "run")).returncode == 0


def test_a_broken_plug_in_breaks_no_other_command(packages: dict[str, str]) -> None:
    listed = start(packages, "suites", "--json")
    assert listed.returncode == 0, listed.stderr
    names = [row["name"] for row in json.loads(listed.stdout)["suites"]]
    assert "shop" in names
    assert "broken" not in names
    assert names.count("bfcl") == 1
    (line,) = listed.stderr.splitlines()
    assert line.startswith(
        "gymcp: plug-in 'broken' of package 'bad' (bad_plugin:ENV): bad_plugin.py:1: RuntimeError: boom"
    )
    used = start(packages, "eval", "broken")
    assert (used.returncode, "plug-in 'broken' of package 'bad'" in used.stderr) == (2, True)
    dead = start(packages, "eval", str(BANK), "--agent", "dead")
    assert (dead.returncode, "plug-in 'dead' of package 'bad'" in dead.stderr) == (2, True)


def test_names_of_plug_ins_are_completed(packages: dict[str, str]) -> None:
    def complete(*words: str) -> list[str]:
        asked = {
            "_GYMCP_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("gymcp", *words)),
            "COMP_CWORD": str(len(words)),
        }
        return start({**packages, **asked}).stdout.split()

    assert complete("eval", "sho") == ["shop"]
    assert "payer" in complete("eval", "shop", "--agent", "pay")


def test_the_page_on_agents_is_played(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(BANK.parent)
    assert play_page(DOCS / "adding-an-agent.md", tmp_path) == 4
