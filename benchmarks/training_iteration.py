"""A whole iteration of training: 256 episodes of `backoffice` level 1 in sandboxed servers, grading, credit, update."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from report_table import Result, against

from gymcp.envs import load_env, load_spec
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.run.checkpoints import CHECKPOINT
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.types import Json

LIMIT_S = 30.0
"""Seconds that an iteration of 256 episodes may take."""
PARTS = ("rollout", "credit", "update")
TABLE: Mapping[str, Any] = {
    "env": "backoffice",
    "name": "iteration",
    "model": {"vocabulary": 1024, "hidden": 128, "layers": 4, "heads": 4, "context": 768},
    "tasks": {"levels": [1]},
    "warm_start": {"tasks": 200, "epochs": 6, "batch_size": 16, "learning_rate": 2e-3},
    "rollout": {"groups": 32, "episodes": 8, "max_tokens": 32, "max_turns": 6},
    "learn": {"iterations": 4, "learning_rate": 3e-4},
    "evaluation": {"every": 0, "tasks": 4},
}


def iteration(*, quick: bool) -> list[Result]:
    """Seconds of the median iteration, after one that warms up, and of its parts."""
    table = dict(TABLE)
    if quick:
        table |= {
            "warm_start": {**TABLE["warm_start"], "tasks": 60, "epochs": 3},
            "rollout": {**TABLE["rollout"], "groups": 8},
            "learn": {**TABLE["learn"], "iterations": 2},
        }
    recipe = make_recipe(table)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        train(recipe, load_env(load_spec("backoffice")), out, resume=False, on_row=_tell)
        rows = [row for row in read_metrics(out) if row["iteration"] > 1]
        weights = torch.load(out / CHECKPOINT / str(recipe.learn.iterations) / "learner.pt", weights_only=True)
    size = sum(weight.numel() for weight in weights["weights"].values())
    episodes = recipe.rollout.groups * recipe.rollout.episodes
    limit = Result(metric=f"iteration, {episodes} episodes: limit", value=LIMIT_S * episodes / 256, unit="s")
    whole = against(f"iteration, {episodes} episodes", _median(rows, "seconds"), "s", limit)
    parts = [against(f"iteration: {part}", _median(rows, f"seconds/{part}"), "s", whole) for part in PARTS]
    others = [
        Result(metric="iteration: parameters", value=size / 1e6, unit="M"),
        Result(metric="iteration: steps of an episode", value=_median(rows, "steps"), unit=""),
        Result(metric="iteration: tokens trained on", value=_median(rows, "tokens"), unit=""),
    ]
    return [limit, whole, *parts, *others]


def _median(rows: list[dict[str, Json]], name: str) -> float:
    return statistics.median(float(row[name]) for row in rows)


def _tell(row: Mapping[str, Json]) -> None:
    print(f"iteration: {row.get('phase', 'row')} {row.get('epoch', row.get('iteration'))}", file=sys.stderr, flush=True)
