"""Tasks of a training run: their digest is recorded, and compared when it is resumed or compared with another."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import BANK

from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.errors import ConfigError
from gymcp.evaluators.training_conditions import check_same_tasks, read_conditions
from gymcp.trainers.recipe.load import make_recipe
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
    check_tasks_unchanged(tmp_path / "mine", envs["copy"])
    with pytest.raises(ConfigError, match="the tasks of 'bank' have changed since the run began; put them"):
        check_tasks_unchanged(tmp_path / "mine", envs["edited"])
