"""The disk that a training run takes: no run is refused that would fit, and none begins that cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import small_models as tiny

from gymcp.outcome import Outcome
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.forecasts.disk import LEAST_EPISODE_BYTES, DiskForecast, forecast_disk, measure_record
from gymcp.trainers.run.forecasts.size import ModelShape
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Json, Trajectory

SHAPE = ModelShape(parameters=1_000, trained=1_000, vocabulary=1, hidden=1, layers=1, cache_width=1)
ADAPTER = replace(SHAPE, trained=10)


def make(**sections: Json) -> Recipe:
    table: dict[str, Json] = {
        "env": "bank",
        "rollout": {"groups": 2, "episodes": 4},
        "learn": {"iterations": 5},
        **sections,
    }
    return make_recipe(table)


def forecast(recipe: Recipe, shape: ModelShape | None, folder: Path) -> DiskForecast:
    return forecast_disk(recipe, build_preset(recipe), shape, folder)


@pytest.mark.parametrize(
    ("recipe", "shape", "weights"),
    [
        (make(), SHAPE, 2 * 12_000),  # a checkpoint has weights and two moments, and replaces another one
        (make(learn={"iterations": 1}), SHAPE, 12_000 + 4_000),  # the first checkpoint has no moments
        (make(loss={"kl": 0.1}), SHAPE, 2 * 16_000),  # with the weights of the reference policy
        (make(model={"path": "m", "lora_rank": 1}), ADAPTER, 120 + 2_000),  # the trained model is the larger part
        (make(model={"path": "m", "lora_rank": 1, "precision": "float32"}), ADAPTER, 120 + 4_000),
        (make(), None, 0),
    ],
)
def test_weights_are_those_that_lie_side_by_side(
    recipe: Recipe, shape: ModelShape | None, weights: int, tmp_path: Path
) -> None:
    assert forecast(recipe, shape, tmp_path).weights == weights


def test_only_rollouts_that_are_certain_count(tmp_path: Path) -> None:
    assert forecast(make(), None, tmp_path).episodes == 5 * 2 * 4
    assert forecast(make(replay={"keep": 1}), None, tmp_path).episodes == 5 * 2


def test_a_disk_is_too_small_from_one_byte_on(tmp_path: Path) -> None:
    least = 24_000 + 40 * LEAST_EPISODE_BYTES
    exact = replace(forecast(make(), SHAPE, tmp_path), free=least)
    assert exact.count_bytes() == least
    assert (exact.is_too_small, replace(exact, free=least - 1).is_too_small) == (False, True)


def test_content_of_the_folder_counts_as_free(tmp_path: Path) -> None:
    """A run that is resumed replaces its checkpoint, and has its episodes."""
    run = tmp_path / "run"
    run.mkdir()
    with (run / "checkpoint").open("wb") as file:
        file.truncate(1 << 40)  # a file with a hole, which takes no disk
    disk = forecast(make(), SHAPE, run)
    assert disk.free >= 1 << 40
    assert disk.place == run
    assert forecast(make(), SHAPE, tmp_path / "none" / "yet").place == tmp_path


def test_no_record_is_smaller_than_the_least() -> None:
    empty = Trajectory(id="", env="e", task="t", trial=0, outcome=Outcome.ENV_INFRA, score=None)
    assert LEAST_EPISODE_BYTES < measure_record(empty) < 2 * LEAST_EPISODE_BYTES


def test_no_checkpoint_is_smaller_than_was_said(tmp_path: Path) -> None:
    model = tiny.model()
    learner = Learner(model, LearnerSettings(learning_rate=1e-3))
    learner.update([tiny.example(row, (1.0, -1.0)) for row in tiny.group(1)], Loss(), groups=[0] * 4)
    learner.save(tmp_path / "checkpoint")
    parameters = sum(weight.numel() for weight in model.parameters())
    shape = replace(SHAPE, parameters=parameters, trained=parameters)
    size = sum(path.stat().st_size for path in (tmp_path / "checkpoint").iterdir())
    assert forecast(make(), shape, tmp_path).weights <= 2 * size
