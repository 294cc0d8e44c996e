"""A deterministic run repeats itself to the last digit, even if it is killed midway and continued."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_command

from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.viewer.summary import summarise_run
from gymcp.store import open_run
from gymcp.store.metric_rows import METRICS_FILE
from gymcp.trainers.recipe.load import load_recipe
from gymcp.trainers.run.checkpoints import CHECKPOINT
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics

TIMEOUT_S = 600.0
RECIPE = """
env = "backoffice"
seed = 3
deterministic = true
[model]
vocabulary = 600
hidden = 32
layers = 2
heads = 2
context = 640
[tasks]
levels = [1]
families = ["cancel", "ticket"]
[warm_start]
tasks = 6
epochs = 1
batch_size = 3
[rollout]
groups = 2
episodes = 3
max_tokens = 8
max_turns = 2
concurrency = 6
slots = 4
[credit]
preset = "ppo"
[loss]
kl = 0.01
[learn]
iterations = 3
minibatches = 2
demonstrations = 2
[evaluation]
every = 2
tasks = 2
"""


pytestmark = [
    pytest.mark.xdist_group("resumed"),  # all compare with the first run
    pytest.mark.usefixtures("one_thread"),  # as in the process that is killed
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "same.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def first(recipe: Path) -> Path:
    return run_training(recipe, recipe.parent / "first", resume=False)


def run_training(recipe: Path, folder: Path, *, resume: bool, concurrency: int = 6) -> Path:
    loaded = load_recipe(recipe, [("rollout.concurrency", concurrency)])
    ending = train(loaded, load_env(load_spec("backoffice")), folder, resume=resume)
    assert (ending.iterations, ending.reason) == (3, "finished")
    return folder


def load_weights(folder: Path) -> dict[str, Any]:
    weights: dict[str, Any] = torch.load(folder / CHECKPOINT / "3" / "learner.pt", weights_only=True)["weights"]
    return weights


def has_same_weights(a: Path, b: Path) -> bool:
    pairs = zip(load_weights(a).values(), load_weights(b).values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_the_same_recipe_and_seed_give_the_same_metrics_to_the_last_digit(first: Path, recipe: Path) -> None:
    again = run_training(recipe, recipe.parent / "again", resume=False)
    assert (again / METRICS_FILE).read_bytes() == (first / METRICS_FILE).read_bytes()
    assert has_same_weights(again, first)
    rows = read_metrics(first)
    assert {"kl_reference", "critic/loss", "demonstrations/loss", "entropy", "success"} <= rows[3].keys()
    assert rows[1]["entropy"] != rows[2]["entropy"]
    assert not any("seconds" in name for row in rows for name in row)


def test_a_chosen_number_of_episodes_at_a_time_is_recorded_and_changes_no_digit(first: Path, recipe: Path) -> None:
    chosen = run_training(recipe, recipe.parent / "chosen", resume=False, concurrency=0)
    assert (chosen / METRICS_FILE).read_bytes() == (first / METRICS_FILE).read_bytes()
    assert has_same_weights(chosen, first)
    (given,), (start,) = (open_run(folder).starts for folder in (first, chosen))
    assert given["concurrency"] == {"episodes": 6, "limit": "given"}
    assert (start["concurrency"]["episodes"], start["concurrency"]["limit"]) == (4, "slots")


def test_a_killed_run_continues_to_the_same_metrics_and_weights(first: Path, recipe: Path) -> None:
    """Killed with SIGKILL during its second iteration, when the first is written."""
    folder = recipe.parent / "killed"
    words = ["alone", "train", str(recipe), "--deterministic", "--out", str(folder)]
    ours, theirs = os.pipe()
    with os.fdopen(ours, encoding="utf-8") as said:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = warm_command.start(words, theirs, 2, cwd=None, env=environment, program="launch")
        os.close(theirs)
        for line in said:
            if line.split()[:1] == ["1/3"]:
                break
        assert summarise_run(folder).running
        for resume in (True, False):
            with pytest.raises(StoreError, match=rf"in use by another gymcp \(process {command.pid}\)$"):
                run_training(recipe, folder, resume=resume)
        os.kill(command.pid, signal.SIGKILL)
        assert command.wait(TIMEOUT_S) == -signal.SIGKILL
    assert not summarise_run(folder).running
    assert len(read_metrics(folder)) < 4
    assert json.loads((folder / "training.json").read_text())["iteration"] < 3
    run_training(recipe, folder, resume=True)
    assert (folder / METRICS_FILE).read_bytes() == (first / METRICS_FILE).read_bytes()
    assert has_same_weights(folder, first)


def test_a_finished_run_can_be_continued_for_more_iterations(first: Path, recipe: Path) -> None:
    """The metrics are those of the longer run, except for the evaluation at the earlier end."""
    folder = recipe.parent / "longer"
    shorter = load_recipe(recipe, [("learn.iterations", 2), ("rollout.concurrency", 1)])
    env = load_env(load_spec("backoffice"))
    assert train(shorter, env, folder, resume=False).iterations == 2
    with pytest.raises(ConfigError, match="another recipe: learn; only"):
        train(load_recipe(recipe, [("learn.iterations", 1)]), env, folder, resume=True)
    with pytest.raises(ConfigError, match="another recipe: learn; only"):
        train(load_recipe(recipe, [("learn.schedule", "linear")]), env, folder, resume=True)
    run_training(recipe, folder, resume=True)  # with another number of episodes at a time
    assert len(open_run(folder).starts) == 2
    assert read_metrics(folder)[3] == read_metrics(first)[3]
    assert has_same_weights(folder, first)
