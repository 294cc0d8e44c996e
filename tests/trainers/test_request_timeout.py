"""A recipe's limit on one answer of the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.errors import ConfigError
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics

TABLE: dict[str, Any] = {
    "env": "backoffice",
    "name": "hurried",
    "model": {"vocabulary": 600, "hidden": 32, "layers": 1, "heads": 2, "context": 640},
    "tasks": {"levels": [1], "families": ["cancel"]},
    "warm_start": {"tasks": 3, "epochs": 1, "batch_size": 3},
    "rollout": {"groups": 1, "episodes": 2, "max_tokens": 8, "request_timeout_s": 1e-6},
    "learn": {"iterations": 1},
    "evaluation": {"every": 0, "tasks": 1},
}


def test_an_answer_that_is_later_than_the_recipe_allows_ends_its_episode_with_a_score(tmp_path: Path) -> None:
    """Every answer is too late here, so no episode has a step to learn from, and training says why."""
    late = r"no episode of iteration 1 has a step; .* budget_exhausted: .*model 'hurried': no answer within 1e-06 s"
    with pytest.raises(ConfigError, match=late):
        train(make_recipe(TABLE), load_env(load_spec("backoffice")), tmp_path / "run", resume=False)
    (row,) = read_metrics(tmp_path / "run")
    assert (row["test/seeds/scored"], row["test/seeds/tasks"], row["test/seeds/success"]) == (1, 1, 0.0)
