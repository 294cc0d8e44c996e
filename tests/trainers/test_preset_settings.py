"""A resumed training has the settings of its preset that it began with, or is refused with those that have changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_old_training_runs import todays_keys

from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.preset_settings import list_settings
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.checkpoints import find_saved_state
from gymcp.trainers.run.loop import train
from gymcp.types import Json

FORMER: dict[str, Json] = {"credit.gamma": 0.95, "credit.norm": "mean", "loss.clip_high": 0.3}
"""Settings that a run of another version may have had."""


@pytest.fixture(scope="module")
def training_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a version that recorded no settings, gone on with."""
    folder = shutil.copytree(Path(__file__).parent / "old_run", tmp_path_factory.mktemp("training") / "run")
    train(make_recipe(todays_keys(iterations=2)), load_env(load_spec("backoffice")), folder, resume=True)
    return folder


def begun_with(settings: dict[str, Json], training_run: Path, folder: Path) -> Path:
    """A copy of the run's state, with these settings in place of today's."""
    state = json.loads((training_run / "training.json").read_text())
    state["settings"] |= settings
    (folder / "training.json").write_text(json.dumps(state))
    return folder


def settings_of(recipe: Recipe) -> dict[str, Json]:
    return list_settings(recipe, build_preset(recipe))


def recipe_with(**sections: dict[str, Any]) -> Recipe:
    return make_recipe({**todays_keys(iterations=2), **sections})


def test_settings_are_the_defaults_and_what_the_recipe_names() -> None:
    plain = settings_of(recipe_with())
    assert plain.items() >= {"credit.gamma": 0.85, "credit.anchor": ["group", "state"], "loss.kl": 0.0}.items()
    weight = {"rule": "band", "high": 3.0}
    named = settings_of(recipe_with(credit={"preset": "gigpo", "gamma": 0.9}, loss={"kl": 0.1, "weight": weight}))
    changed = {"credit.gamma": 0.9, "loss.kl": 0.1, "loss.weight": {"rule": "band", "low": 0.5, "high": 3.0}}
    assert named == {**plain, **changed}


def test_settings_of_a_preset_of_trees_and_of_the_users_own_are_listed(tmp_path: Path) -> None:
    trees = settings_of(recipe_with(credit={"preset": "treepo"}, rollout={"controller": "treepo"}))
    assert {"credit.", "loss."} == {key[: key.index(".") + 1] for key in trees}
    file = tmp_path / "mine.py"
    file.write_text(
        "from gymcp.trainers import make_preset\n\n\n"
        "def mine(*, weight: float = 2.0):\n    return make_preset('gigpo', step_weight=weight)\n"
    )
    assert settings_of(recipe_with(credit={"preset": f"{file}:mine"}))["credit.weight"] == 2.0


def test_a_run_keeps_its_settings_beside_its_recipe(training_run: Path) -> None:
    state = json.loads((training_run / "training.json").read_text())
    assert (state["iteration"], state["settings"]) == (2, settings_of(recipe_with()))
    assert find_saved_state(training_run, recipe_with(), resume=True) is not None


def test_a_run_that_began_with_other_defaults_is_refused_with_what_has_changed(
    training_run: Path, tmp_path: Path
) -> None:
    says = (
        r"preset 'gigpo' has other defaults than when the run began: credit\.gamma was 0\.95 and is 0\.85, credit\.norm"
        r" was 'mean' and is 'mean_std', loss\.clip_high was 0\.3 and is 0\.28; name the former ones in the recipe, or"
    )
    with pytest.raises(ConfigError, match=says):
        find_saved_state(begun_with(FORMER, training_run, tmp_path), recipe_with(), resume=True)


def test_it_goes_on_with_a_recipe_that_names_the_former_ones(training_run: Path, tmp_path: Path) -> None:
    run = begun_with(FORMER, training_run, tmp_path)
    credit = {"preset": "gigpo", "gamma": 0.95, "norm": "mean"}
    saved = find_saved_state(run, recipe_with(credit=credit, loss={"clip_high": 0.3}), resume=True)
    assert saved is not None
    assert saved.settings.items() >= FORMER.items()
    with pytest.raises(ConfigError, match="was started with another recipe: credit;"):
        find_saved_state(run, recipe_with(credit={**credit, "gamma": 0.9}), resume=True)
