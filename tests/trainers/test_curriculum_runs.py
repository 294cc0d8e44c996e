"""Training runs with a curriculum: its state in the checkpoint, refilled batches, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from coin_flip_bank import BANK, make_coin_flip_bank
from interruption import train_until

from gymcp.cli.training.credit_run import load_tasks
from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore
from gymcp.store.metric_rows import METRICS_FILE
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics

TABLE: dict[str, Any] = {
    "env": "rounds",
    "name": "chosen",
    "deterministic": True,
    "tasks": {"levels": [1, 2]},
    "rollout": {"groups": 2, "episodes": 2, "max_tokens": 4, "max_turns": 3, "concurrency": 4, "slots": 4},
    "learn": {"iterations": 3, "drop_uninformative": True},
    "evaluation": {"every": 0, "tasks": 1},
}


@pytest.fixture(scope="module")
def rounds() -> LoadedEnv:
    return load_env(load_spec("rounds"))


@pytest.mark.parametrize(
    "rule",
    [
        {"order": "frontier", "refill": 1},
        {"order": "failures", "start_turns": 1},
    ],
    ids=["frontier", "failures"],
)
def test_an_interrupted_run_plays_the_tasks_of_an_uninterrupted_one(
    rule: dict[str, Any], rounds: LoadedEnv, model: Path, tmp_path: Path
) -> None:
    recipe = make_recipe({**TABLE, "model": {"path": str(model)}, "curriculum": rule})

    assert train(recipe, rounds, tmp_path / "whole", resume=False).iterations == 3
    train_until(2, recipe, rounds, tmp_path / "cut")
    saved = json.loads((tmp_path / "cut" / "training.json").read_text())
    assert (saved["iteration"], sum(each["made"] for each in saved["curriculum"]["kinds"].values())) == (
        1, saved["curriculum"]["groups"],
    )  # fmt: skip
    assert train(recipe, rounds, tmp_path / "cut", resume=True).iterations == 3
    assert (tmp_path / "cut" / METRICS_FILE).read_bytes() == (tmp_path / "whole" / METRICS_FILE).read_bytes()
    assert count_played(tmp_path / "cut") == count_played(tmp_path / "whole")
    assert set(count_played(tmp_path / "whole")) <= {task.id for task in load_tasks(tmp_path / "whole", rounds.spec)}


def count_played(folder: Path) -> Counter[str]:
    with TrajectoryStore.open(folder) as store:
        return Counter(row.task for row in store.summaries())


def test_groups_that_all_scored_alike_are_replaced_wave_after_wave(model: Path, tmp_path: Path) -> None:
    rollout = {**TABLE["rollout"], "groups": 3, "max_turns": 1, "max_tokens": 2}
    recipe = make_recipe(
        {
            **TABLE,
            "env": str(BANK),
            "tasks": {},
            "model": {"path": str(model)},
            "rollout": rollout,
            "curriculum": {"refill": 3},
            "learn": {**TABLE["learn"], "iterations": 2},
        }
    )
    train(recipe, make_coin_flip_bank(), tmp_path, resume=False)
    for row in read_metrics(tmp_path)[1:]:
        left, waves = row["curriculum/groups"] - row["dropped"] // 2, row["curriculum/waves"]
        assert 1 <= waves <= 4
        assert left >= 3 or waves == 4
    assert any(row["curriculum/waves"] > 1 for row in read_metrics(tmp_path)[1:])


def test_the_horizon_of_an_iteration_bounds_its_episodes(rounds: LoadedEnv, model: Path, tmp_path: Path) -> None:
    recipe = make_recipe({**TABLE, "model": {"path": str(model)}, "curriculum": {"start_turns": 1}})
    train(recipe, rounds, tmp_path, resume=False)
    assert [row.get("curriculum/turns") for row in read_metrics(tmp_path)] == [None, 1, 2, 3]
    with TrajectoryStore.open(tmp_path) as store:
        for record in store.iter_trajectories():
            assert len(record.steps) <= int(record.group.rpartition("/")[2]) + 1


def test_a_curriculum_without_kinds_is_refused_before_anything_starts(model: Path, tmp_path: Path) -> None:
    recipe = make_recipe(
        {**TABLE, "env": str(BANK), "tasks": {}, "model": {"path": str(model)}, "curriculum": {"order": "frontier"}}
    )
    with pytest.raises(ConfigError, match="environment 'bank' generates no tasks"):
        train(recipe, make_coin_flip_bank(), tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()
