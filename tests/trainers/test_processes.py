"""Training in two processes: DDP and FSDP2, on CPU cores. One run is started by torch's launcher."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import warm_command
from launch import WAIT_S, launch, run_together
from length import IS_FULL
from transformers import AutoModelForCausalLM

from gymcp.trainers.run.checkpoints import CHECKPOINT
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.trainers.run.model_files import FINAL

RECIPE: dict[str, Any] = {
    "env": "backoffice",
    "name": "small",
    "deterministic": True,
    "model": {"vocabulary": 600, "hidden": 32, "layers": 2, "heads": 2, "context": 640},
    "tasks": {"levels": [1], "families": ["cancel", "ticket"]},
    "warm_start": {"tasks": 6, "epochs": 1, "batch_size": 3},
    "rollout": {"groups": 2, "episodes": 4, "max_tokens": 8, "max_turns": 2, "concurrency": 4, "slots": 4},
    "learn": {"iterations": 2, "learning_rate": 1e-3},
    "credit": {"preset": "ppo"},
    "evaluation": {"every": 1, "tasks": 4},
}


ALL = ("tied", "untied", "adapter", "adapter of bfloat16")
MODELS = {"ddp": ALL, "fsdp": ALL, "fsdp-from-main": ALL if IS_FULL else ("tied", "adapter")}
"""Way -> kinds of models: the last way differs from the second in where weights come from; nightly it has all kinds."""


@pytest.mark.parametrize("way", MODELS)
def test_two_processes_compute_and_learn_the_same_as_one(way: str, tmp_path: Path) -> None:
    done = run_together(way, "compare", tmp_path, *MODELS[way])
    assert done.returncode == 0, done.stderr[-3000:]
    by_kind = json.loads((tmp_path / "found.json").read_text())
    assert tuple(by_kind) == MODELS[way]
    for kind, found in by_kind.items():
        assert found.pop("spoilt") == 0
        # with bfloat16, differences in rounding hide everything else from the second update on
        compared = ("start", "first") if "bfloat16" in kind else ("",)
        assert {
            name: value for name, value in found.items() if name.startswith(compared) and not value <= 1e-3
        } == {}, kind


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "small.toml"
    path.write_text(tomli_w.dumps(RECIPE))
    return path


def approximate_metrics(folder: Path) -> list[Mapping[str, Any]]:
    """The rows of a run, of which numbers compare equal within 1e-4."""
    return [
        {name: pytest.approx(value, abs=1e-4) if isinstance(value, float) else value for name, value in row.items()}
        for row in read_metrics(folder)
    ]


def train_alone(*arguments: object) -> None:
    command = ["train", *map(str, arguments)]
    warm_command.run(command, cwd=None, env=os.environ, timeout_s=WAIT_S).check_returncode()


def test_a_run_in_two_processes_has_the_metrics_and_the_model_of_a_run_in_one(recipe: Path, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    done = launch("train", recipe, "--out", together)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("finished after 2 iterations") == 1
    train_alone(recipe, "--out", alone)
    assert read_metrics(together) == approximate_metrics(alone)
    final = [AutoModelForCausalLM.from_pretrained(folder / FINAL) for folder in (alone, together)]
    for one_weight, other in zip(*(model.parameters() for model in final), strict=True):
        assert (one_weight - other).abs().max() < 1e-3

    # a checkpoint that one process cannot see is an error: that process does not go on with other weights
    blind = run_together("ddp", "blind", recipe, "--resume", "--set", "learn.iterations=3", "--out", together)
    assert blind.returncode != 0
    assert f"checkpoint {together.with_name('nowhere')}: there is no learner.pt" in blind.stderr
    assert "training: load: 1 of 2 processes failed, and the main one did not" in blind.stderr
    assert len(read_metrics(together)) == 3

    # one process continues the checkpoint of two
    train_alone(recipe, "--out", together, "--resume", "--set", "learn.iterations=3")
    assert (together / CHECKPOINT / "3" / "learner.pt").exists()
    assert [row["iteration"] for row in read_metrics(together)] == [0, 1, 2, 3]


def test_an_impossible_setup_is_reported_once_and_ends_every_process(recipe: Path, tmp_path: Path) -> None:
    done = run_together("fsdp", "train", recipe, "--out", tmp_path / "run")
    assert done.returncode != 0
    assert done.stderr.count("the embedded engine needs whole weights, and FSDP spreads them") == 1
    assert not (tmp_path / "run").exists()
    done = run_together("ddp", "refuse")
    assert done.returncode == 0, done.stderr[-3000:]
