"""Generation beside training: the bound on the age of tokens, kills, replays of a recorded run, bad settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.store import TrajectoryStore
from gymcp.trainers.learner.token_rows import rows_of
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.run.asynchronous.update_log import read_updates
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics

TABLE: dict[str, Any] = {
    "env": "backoffice",
    "name": "small",
    "model": {"vocabulary": 600, "hidden": 32, "layers": 1, "heads": 2, "context": 640},
    "tasks": {"levels": [1], "families": ["cancel", "ticket"]},
    "rollout": {
        "groups": 2, "episodes": 2, "max_tokens": 8, "max_turns": 2, "concurrency": 10, "slots": 10, "staleness": 1,
        "over_provision": 1,
    },
    "reward": {"length": 0.01},
    "learn": {"iterations": 5},
    "evaluation": {"every": 0, "tasks": 1},
}  # fmt: skip
RECIPE = make_recipe(TABLE)


@pytest.fixture(scope="module")
def env() -> LoadedEnv:
    return load_env(load_spec("backoffice"))


@pytest.fixture(scope="module")
def finished(env: LoadedEnv, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asynchronous") / "run"
    ending = train(RECIPE, env, folder, resume=False)
    assert (ending.iterations, ending.reason) == (5, "finished")
    return folder


def test_no_token_is_learnt_from_that_is_staler_than_allowed(finished: Path) -> None:
    updates = read_updates(finished)
    assert [(line.iteration, line.version) for line in updates] == [(n, str(n - 1)) for n in range(1, 6)]
    ages: list[int] = []
    with TrajectoryStore.open(finished) as store:
        for line in updates:
            assert len(line.episodes) == 4
            assert not set(line.episodes) & set(line.dropped)
            rows = [row for each in line.episodes for row in rows_of(store.load(each))]
            ages += [int(line.version) - int(version) for row in rows for version, _, _ in row.versions]
    assert set(ages) == {0, 1}, "some rollouts have gone on beside an update"
    for row in read_metrics(finished)[1:]:
        assert row["staleness/0"] + row["staleness/1"] == row["tokens"]
        assert row["staleness/1"] == row["tokens/stale"]
        assert {"utilisation/policy", "utilisation/tools", "utilisation/learner"} <= row.keys()
