"""A training whose episodes are played by workers in processes of their own: the same run as on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from worker_nodes import CONCURRENCY, Pool, WorkerNode

from gymcp.cli.training.cluster.node import open_play
from gymcp.cli.training.cluster.player import open_player
from gymcp.envs import load_env, load_spec
from gymcp.outcome import Outcome
from gymcp.scale.copies.records import PlacedFiles
from gymcp.scale.distribution import NODE_KEY, DistributionSettings
from gymcp.scale.plan import NodeGroup
from gymcp.store import TrajectoryStore
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.types import Trajectory

RECIPE = make_recipe(
    {
        "env": "backoffice",
        "name": "small",
        "deterministic": True,
        "model": {"vocabulary": 600, "hidden": 32, "layers": 1, "heads": 2, "context": 640},
        "tasks": {"levels": [1], "families": ["cancel", "ticket"]},
        "rollout": {"groups": 2, "episodes": 2, "max_tokens": 8, "max_turns": 2, "concurrency": CONCURRENCY},
        "reward": {"length": 0.01},
        "learn": {"iterations": 2},
        "evaluation": {"every": 0, "tasks": 2},
    }
)
LOST_ANSWER = 4
"""Answer of the first node, of those with attempts, that is lost with the node."""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread, because sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def read_attempts(folder: Path) -> list[Trajectory]:
    with TrajectoryStore.open(folder) as store:
        return list(store.iter_trajectories(latest=False))


def list_samples(folder: Path) -> dict[tuple[str, int], tuple[object, ...]]:
    """Task and trial -> score and exact samples of the attempt that counts."""
    counted = [row for row in read_attempts(folder) if not row.outcome.runs_again]
    found: dict[tuple[str, int], tuple[object, ...]] = {
        (row.task, row.trial): (row.score, [step.sampled for step in row.steps]) for row in counted
    }
    assert len(found) == len(counted)
    return found


def list_figures(folder: Path) -> list[dict[str, Any]]:
    """The metrics, which of a deterministic run have no times, but for what calls have cost in seconds."""
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in read_metrics(folder)]


def test_nodes_give_the_tokens_and_metrics_of_one_machine_though_one_is_lost(
    one_thread: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = load_env(load_spec(RECIPE.env))
    train(RECIPE, env, tmp_path / "here", resume=False)
    opening = partial(open_play, RECIPE, NodeGroup(), PlacedFiles(folder=str(Path.cwd())))
    pool = Pool(WorkerNode("a", opening, loses_answer=LOST_ANSWER), WorkerNode("b", opening))
    settings = DistributionSettings(env=env.spec.name, concurrency=CONCURRENCY)
    train(RECIPE, env, tmp_path / "there", resume=False, open_player=partial(open_player, pool, settings))
    assert list_figures(tmp_path / "there") == list_figures(tmp_path / "here")
    samples = list_samples(tmp_path / "there")
    assert samples == list_samples(tmp_path / "here")
    assert len(samples) == 8
    attempts = read_attempts(tmp_path / "there")
    assert {row.provenance.get(NODE_KEY) for row in attempts if row.outcome is not Outcome.ENV_INFRA} == {"a", "b"}
    assert "node a is lost: the answer was lost on its way" in caplog.text
