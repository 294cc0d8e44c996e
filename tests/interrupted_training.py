"""A training run of four iterations beside one that is interrupted in its third, and goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from gymcp.envs.spec import LoadedEnv
from gymcp.store import TrajectoryStore
from gymcp.store.metric_rows import METRICS_FILE
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.loop import train
from gymcp.types import Json

ITERATIONS = 4


class Interruption(Exception):
    pass


def interrupt(row: Mapping[str, Json]) -> None:
    if row.get("iteration") == 3:
        raise Interruption


def list_played(folder: Path) -> Counter[tuple[str, int]]:
    """Times that each trial of each task was played."""
    with TrajectoryStore.open(folder) as store:
        return Counter((row.task, row.trial) for row in store.summaries(latest=False))


def assert_interruption_changes_nothing(recipe: Recipe, env: LoadedEnv, folder: Path) -> Counter[tuple[str, int]]:
    """Assert that both runs have the same metrics and episodes, and play no trial of a task twice; return the episodes.

    The runs are in `folder`: ``whole`` and ``cut``.
    """
    whole, cut = folder / "whole", folder / "cut"
    assert train(recipe, env, whole, resume=False).iterations == ITERATIONS
    with pytest.raises(Interruption):
        train(recipe, env, cut, resume=False, on_row=interrupt)
    assert json.loads((cut / "training.json").read_text())["iteration"] == 2
    assert train(recipe, env, cut, resume=True).iterations == ITERATIONS
    assert (cut / METRICS_FILE).read_bytes() == (whole / METRICS_FILE).read_bytes()
    played = list_played(whole)
    assert list_played(cut) == played
    assert set(played.values()) == {1}
    return played
