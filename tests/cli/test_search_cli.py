"""`gymcp eval --search`: what a run says of its search, and the lines that refuse one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server, says
from cli_runner import BANK, gymcp
from transformers import AutoModelForCausalLM

from gymcp.agents.policies.specs import TRAINED
from gymcp.trainers import Learner, LearnerSettings, StepValues, save_step_values
from gymcp.trainers.learner.critic import Critic

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


RUBRIC = 'name = "calls"\npoints = [{id = "pays", text = "Somebody was paid."}]\n'


def says_that_a_call_is_good(number: int, body: dict[str, Any]) -> Reply:
    text = body["messages"][1]["content"]
    mark = re.search(r"RECORD ([0-9a-f]{16})", text)
    assert mark is not None
    points = {"pays": '"tool": "transfer"' in text}
    return says(json.dumps({"mark": mark[1], "reason": "r", "points": points}), prompt=100, completion=9)


def test_a_judge_gives_the_values_by_a_rubric_and_its_use_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "rubric.toml").write_text(RUBRIC)
    words = ("eval", BANK, "--agent", "random", "--limit", 2, "--out", tmp_path / "run")
    text = f"best_of_n,width=3,value=judge,rubric={tmp_path / 'rubric.toml'}"
    refused = gymcp(*words, "--search", text)
    assert (refused.returncode, (tmp_path / "run").exists()) == (2, False)
    assert "search best_of_n: value=judge asks a model, and none is named; give one: --judge" in refused.stderr
    with chat_server(says_that_a_call_is_good) as server:
        judge = f"openai:{server.url}#m"
        done = gymcp(*words, "--search", text, "--judge", judge)
        asked = len(server.requests)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (config["search_value"], config["search_rubric"], config.get("upper_bound")) == ("judge", "calls/1", None)
    assert summary["judge"] == {
        "search": {
            "policy": judge, "rubric": "calls/1", "answers": asked, "prompt_tokens": 100 * asked,
            "completion_tokens": 9 * asked, "cost": 0.0,
        }
    }  # fmt: skip
    assert 1 <= asked <= 6
    assert summary["prompt_tokens"] == 0
    assert f"judge of the search: {asked} answers" in done.stdout
    assert "judge of the search" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--search", "best_of_n", "--branch", "ways=2"), "--branch and --search: a search decides itself"),
        (("--search", "mcts,rollouts=0"), "search mcts: rollouts must be 1 or more, not 0"),
        (("--search", "mcts,value=q,head=nowhere"), "head nowhere: cannot be read"),
        (("--search", "mcts,value=q,head=nowhere", "--ray", "auto"), "a head is loaded here, and not on nodes"),
    ],
)
def test_a_search_with_branches_or_without_episodes_or_its_head_is_refused(
    options: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    done = gymcp("eval", BANK, "--agent", "random", *options, "--out", tmp_path / "run")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert why in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_head_of_other_tasks_is_no_upper_bound_and_needs_an_agent_with_tokens(tmp_path: Path) -> None:
    learner = Learner(AutoModelForCausalLM.from_pretrained(TRAINED), LearnerSettings())
    width = learner.model.config.hidden_size
    head = Critic(width, learner.model.device, learning_rate=1e-3, epochs=1, seed=0)
    tasks = frozenset({"bank/another"})
    values = StepValues(learner=learner, head=head, model=TRAINED, explained=0.5, tasks=tasks)
    save_step_values(values, tmp_path / "head")
    words = ("eval", BANK, "--limit", 1, "--search", f"best_of_n,width=1,value=q,head={tmp_path / 'head'}")
    done = gymcp(*words, "--policy", "tiny", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["search_value"], config.get("upper_bound")) == ("q", None)
    refused = gymcp(*words, "--agent", "random", "--out", tmp_path / "other")
    assert refused.returncode == 2
    assert "no tokens are recorded, so nothing can be trained on" in refused.stderr


def test_a_head_is_learnt_from_a_run_and_values_a_search_on_other_tasks(tmp_path: Path) -> None:
    """The shipped policy solves most requests of level 1 and few of level 3, so there is something to learn."""
    words = ("eval", "backoffice", "--policy", "tiny")
    done = gymcp(*words, "--tasks", "seeds-*-1-0,seeds-*-3-0", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    learnt = gymcp("learn", tmp_path / "run", "--json")
    assert learnt.returncode == 0, learnt.stderr
    said = json.loads(learnt.stdout)
    head = str(tmp_path / "run" / "head")
    assert (said["policy"], said["head"], said["tasks"]) == ("tiny", head, 16)
    assert ("no better than a constant" in learnt.stderr) == (said["explained"] <= 0)
    search = f"best_of_n,width=2,value=q,head={head}"
    done = gymcp(*words, "--tasks", "seeds-*-1-1", "--limit", 1, "--search", search, "--out", tmp_path / "searched")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "searched" / "run.json").read_text())["config"]
    assert (config["search_value"], config.get("upper_bound")) == ("q", None)
    refused = gymcp("eval", BANK, "--policy", "tiny", "--search", search, "--out", tmp_path / "other")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "head: it was trained on episodes of backoffice, and this run is of 'bank'" in refused.stderr
    assert not (tmp_path / "other").exists()
