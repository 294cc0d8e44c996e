"""`gymcp train` with controllers: runs that branch, are killed and go on, and recipes that do not fit."""

from __future__ import annotations

import json
import os
import re
import signal
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_command
from page_blocks import DOCS

from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError
from gymcp.seeds import derive_seed
from gymcp.store import TrajectoryStore
from gymcp.store.metric_rows import METRICS_FILE
from gymcp.trainers.credit.tree.presets import TREE_PRESETS
from gymcp.trainers.recipe.branching import RULES
from gymcp.trainers.recipe.entropy_branching import SEED_RANGE, BranchByEntropy
from gymcp.trainers.recipe.load import load_recipe, make_recipe
from gymcp.trainers.run.checkpoints import CHECKPOINT
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.types import Json, Step

ENV = Path(__file__).with_name("prompted_bank.py")
AGENT = Path(__file__).with_name("calling_agent.py")
TIMEOUT_S = 600.0
RECIPE = f"""
env = "{ENV}"
seed = 3
deterministic = true
[model]
vocabulary = 600
hidden = 32
layers = 1
heads = 2
context = 900
[rollout]
groups = 2
episodes = 2
max_tokens = 3
max_turns = 4
concurrency = 4
slots = 4
controller = "treepo"
branching.max_episodes = 3
[credit]
preset = "treepo"
[learn]
iterations = 3
minibatches = 2
[evaluation]
every = 0
tasks = 1
"""
pytestmark = pytest.mark.usefixtures("one_thread")  # as in the process that is killed


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "trees.toml"
    path.write_text(RECIPE)
    return path


def run_training(recipe: Path, folder: Path, settings: dict[str, Json] | None = None, *, resume: bool = False) -> Path:
    loaded = load_recipe(recipe, [*(settings or {}).items()])
    ending = train(loaded, load_env(load_spec(str(ENV))), folder, resume=resume)
    assert (ending.iterations, ending.reason) == (loaded.learn.iterations, "finished")
    return folder


def load_weights(folder: Path) -> dict[str, Any]:
    weights: dict[str, Any] = torch.load(folder / CHECKPOINT / "3" / "learner.pt", weights_only=True)["weights"]
    return weights


def test_a_run_on_trees_that_is_killed_continues_to_the_same_weights(recipe: Path) -> None:
    """Killed with SIGKILL during its second iteration, when the first is written."""
    first, folder = run_training(recipe, recipe.parent / "first"), recipe.parent / "killed"
    words = ["alone", "train", str(recipe), "--deterministic", "--out", str(folder)]
    ours, theirs = os.pipe()
    with os.fdopen(ours, encoding="utf-8") as said:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = warm_command.start(words, theirs, 2, cwd=None, env=environment, program="launch")
        os.close(theirs)
        for line in said:
            if line.split()[:1] == ["1/3"]:
                break
        os.kill(command.pid, signal.SIGKILL)
        assert command.wait(TIMEOUT_S) == -signal.SIGKILL
    assert json.loads((folder / "training.json").read_text())["iteration"] < 3
    run_training(recipe, folder, resume=True)
    assert (folder / METRICS_FILE).read_bytes() == (first / METRICS_FILE).read_bytes()
    pairs = zip(load_weights(folder).values(), load_weights(first).values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    rows = read_metrics(first)[1:]
    assert [row["branches"] for row in rows] == [2 * 2 * 2] * 3  # trees of three episodes
    assert [row["outcome/scored"] for row in rows] == [4] * 3
    assert all(row["grad_norm"] > 0 for row in rows)


def test_arpo_branches_before_the_answers_to_results_that_its_rule_says(recipe: Path) -> None:
    """Read from the record: of each first episode, which answers to a tool's result were drawn again; none to the
    user's messages were."""
    settings: dict[str, Json] = {
        "rollout.controller": "arpo", "credit.preset": "arpo", "learn.iterations": 1, "rollout.branching.weight": 2.0,
        "rollout.branching.max_episodes": 9, "rollout.branching.depth": 1, "rollout.max_turns": 8,
        "rollout.agent": f"{AGENT}:call_sometimes",
    }  # fmt: skip
    folder = run_training(recipe, recipe.parent / "arpo", settings)
    with TrajectoryStore.open(folder) as store:
        firsts = [store.load(row.id) for row in store.summaries()]
        branched = Counter((row.episode.parent, row.shared) for row in store.branches())
        seeds = {row.id: derive_seed(3, row.task, row.trial) for row in store.summaries()}
    size = json.loads((folder / "model" / "config.json").read_text())["vocab_size"]
    rule = BranchByEntropy(vocabulary=size, weight=2.0)

    def entropy(step: Step) -> float:
        assert step.sampled is not None
        return -sum(step.sampled.logprobs) / float(torch.log(torch.tensor(float(rule.vocabulary))))

    expected = Counter(
        (record.id, number - 1)
        for record in firsts
        for number, step in enumerate(record.steps, 1)
        if number > 1
        and step.observation.messages[0].role == "tool"
        and derive_seed("entropy", seeds[record.id], number) / SEED_RANGE
        < min(max(0.5 + 2.0 * (entropy(step) - entropy(record.steps[0])), 0.0), 1.0)
    )
    assert branched == expected
    roles = Counter(step.observation.messages[0].role for record in firsts for step in record.steps[1:])
    assert 0 < len(expected) < roles["tool"]
    assert roles["user"] > 0


def test_step_dpo_learns_from_the_pairs_of_its_trees(recipe: Path) -> None:
    settings: dict[str, Json] = {"credit.preset": "step_dpo", "learn.iterations": 2}
    rows = read_metrics(run_training(recipe, recipe.parent / "dpo", settings))[1:]
    assert any(row["pairs"] > 0 for row in rows)
    assert rows[0]["loss"] == pytest.approx(0.6931, abs=0.01) or not rows[0]["pairs"]


def test_the_recipes_of_the_page_load() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (DOCS / "tree-credit.md").read_text(encoding="utf-8"), re.DOTALL)
    first, filled, monitored, patched = (make_recipe(tomllib.loads(block)) for block in blocks)
    assert (first.rollout.branching.max_episodes, patched.rollout.demonstrations) == (8, "runs/shown")
    assert (monitored.rollout.controller, monitored.credit["preset"]) == ("aepo", "aepo")
    assert (filled.rollout.batch_tokens, filled.rollout.branching.steps) == (5500, (3, 6, 9))


def test_the_page_has_every_controller_with_the_numbers_that_it_reads() -> None:
    section = (
        (DOCS / "tree-credit.md").read_text(encoding="utf-8").partition("| `controller` |")[2].partition("\n\n")[0]
    )
    rows = [line.split(" | ") for line in section.splitlines()[2:]]
    found = {
        name: (tuple(re.findall(r"`(\w+)`", row[2])), int(row[3]))
        for row in rows
        for name in re.findall(r"`(\w+)`", row[0])
    }
    assert found == {name: (rule.reads, rule.episodes) for name, rule in RULES.items() if rule.steers}


@pytest.mark.parametrize("name", TREE_PRESETS)
def test_each_preset_of_trees_has_a_controller(name: str) -> None:
    rollout = {"controller": name if name in RULES else "treepo"}
    if name == "ui_s1":
        rollout["demonstrations"] = "/runs/shown"
    assert make_recipe({"env": "rounds", "rollout": rollout, "credit": {"preset": name}})


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"credit": {"preset": "treepo"}}, "gives credit to trees, and rollout.controller is empty.* to 'treepo'"),
        ({"rollout": {"controller": "treepo"}}, "preset 'gigpo' reads no trees.* choose one of arpo, aepo, treepo"),
        ({"rollout": {"branching": {"ways": 3}}}, "ways is set.*; steps, treepo, treeps, segment_spo, arpo, aepo"),
        (
            {"rollout": {"controller": "treepo", "branching": {"retries": 2}}, "credit": {"preset": "treepo"}},
            "branching.retries is set, and rollout.controller = 'treepo' does not read it; cleaner would",
        ),
        (
            {"rollout": {"controller": "treepo", "branching": {"ways": 1}}, "credit": {"preset": "treepo"}},
            "rollout.branching.ways is 1: it must be 2 or more, or nothing branches; take it out",
        ),
        *(
            (
                {"rollout": {"controller": "treepo", "branching": {key: value}}, "credit": {"preset": "treepo"}},
                f"rollout.branching.{key} is {value}: it must be {least} or more, or nothing branches",
            )
            for key, value, least in (
                ("max_episodes", 1, 2), ("max_episodes", 0, 2), ("depth", 0, 1), ("ways", 0, 2), ("max_tokens", 0, 1),
                ("max_calls", 0, 1),
            )
        ),
        (
            {"rollout": {"controller": "arpo", "agent": "cmd:true"}, "credit": {"preset": "arpo"}},
            "a program cannot go on from a record",
        ),
        (
            {"rollout": {"controller": "arpo"}, "credit": {"preset": "arpo"}, "replay": {"keep": 2}},
            "replay.keep is 2: it chooses among whole episodes",
        ),
        (
            {"rollout": {"controller": "treepo"}, "credit": {"preset": "step_dpo"}, "loss": {"kl": 0.1}},
            "learns from pairs of steps, and loss changes",
        ),
        (
            {"rollout": {"controller": "aepo", "episodes": 1}, "credit": {"preset": "aepo"}},
            "shares out 2 episodes of a task .*: give 3 or more, of which one can branch off",
        ),
        (
            {"rollout": {"controller": "aepo", "branching": {"penalty": 1.5}}, "credit": {"preset": "aepo"}},
            "rollout.branching.penalty is 1.5; it must be from 0 to 1",
        ),
        ({"rollout": {"controller": "beam"}}, "rollout.controller is 'beam'; have '', 'steps', 'arpo'"),
    ],
)  # fmt: skip
def test_a_recipe_whose_trees_nothing_reads_is_one_error(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_recipe({"env": "rounds", **table})
