"""Tasks of a training run: their digest is recorded, and compared when it is resumed or compared with another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import BANK

from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.errors import ConfigError
from gymcp.evaluators.training_conditions import check_same_tasks, read_conditions
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import heldout_tasks
from gymcp.trainers.run.checkpoints import find_saved_state, recipe_as_json
from gymcp.trainers.run.provenance import check_tasks_unchanged, record_training_start


def start_training(folder: Path, file: Path) -> LoadedEnv:
    """The record of a training on the environment file; its state names the file by its path."""
    env = load_env(load_spec(str(file)))
    folder.mkdir()
    record_training_start(folder, make_recipe({"env": str(file)}), env, None, None)
    (folder / "training.json").write_text(f'{{"iteration": 0, "recipe": {{"env": "{file}"}}}}')
    return env


def test_a_copy_of_an_environment_file_has_the_same_tasks_and_an_edited_one_has_not(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.py" for name in ("mine", "copy", "edited")}
    for name, file in files.items():
        content = BANK.read_text()
        file.write_text(content.replace("(5, 30, 100)", "(5, 30, 99)") if name == "edited" else content)
    envs = {name: start_training(tmp_path / name, file) for name, file in files.items()}
    mine, copy, edited = (read_conditions(tmp_path / name) for name in files)
    check_same_tasks({"mine": mine, "copy": copy})
    assert mine.play == copy.play
    with pytest.raises(ConfigError, match=r"suite_digest is .* in mine, and .* in edited: their tasks are others"):
        check_same_tasks({"mine": mine, "edited": edited})
    recipe = make_recipe({"env": str(files["mine"])})
    check_tasks_unchanged(tmp_path / "mine", recipe, envs["copy"])
    with pytest.raises(ConfigError, match="the tasks of 'bank' have changed since the run began; put them"):
        check_tasks_unchanged(tmp_path / "mine", recipe, envs["edited"])


def make_suite(tasks: int) -> LoadedEnv:
    """An environment with a fixed suite of so many tasks."""
    env = load_env(load_spec(str(BANK)))
    first = env.suite.tasks[0]
    return replace(env, suite=replace(env.suite, tasks=tuple(replace(first, id=f"t{n}") for n in range(tasks))))


def list_heldout(env: LoadedEnv, seed: int, *, chosen_by: int = 0, count: int = 8) -> list[str]:
    recipe = make_recipe({"env": "bank", "seed": seed, "evaluation": {"seed": chosen_by, "tasks": count}})
    return [task.id for task in heldout_tasks(env, recipe, "seeds")]


def test_held_out_tasks_are_the_same_for_all_seeds_of_a_run() -> None:
    fixed, generated = make_suite(40), load_env(load_spec("rounds"))
    for env in (fixed, generated):
        assert list_heldout(env, 0) == list_heldout(env, 1) == list_heldout(env, 2)
        assert list_heldout(env, 1, count=12)[:8] == list_heldout(env, 1)
    assert list_heldout(fixed, 1, chosen_by=1) != list_heldout(fixed, 1)


def test_a_run_of_an_earlier_version_is_resumed_on_its_own_held_out_tasks(tmp_path: Path) -> None:
    """It chose them by its seed, and its record names no other."""

    def make(**evaluation: int) -> Recipe:
        return make_recipe({"env": "bank", "seed": 3, "evaluation": {"tasks": 8, **evaluation}})

    stored = recipe_as_json(make())
    del stored["evaluation"]["seed"]
    state = {"iteration": 1, "trackers": {"fewest_calls": {}}, "recipe": stored}
    (tmp_path / "training.json").write_text(json.dumps(state))
    for recipe in (make(), make(seed=3)):
        assert find_saved_state(tmp_path, recipe, resume=True) is not None
    with pytest.raises(
        ConfigError, match=r"were chosen by seed 3, and by evaluation\.seed 0 they would be others; put"
    ):
        check_tasks_unchanged(tmp_path, make(), make_suite(40))
    check_tasks_unchanged(tmp_path, make(seed=3), make_suite(40))
    check_tasks_unchanged(tmp_path, make(), make_suite(8))  # all of them are taken
