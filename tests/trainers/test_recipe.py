from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gymcp.errors import ConfigError
from gymcp.trainers.recipe import load_recipe, make_recipe

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipes_can_be_read(path: Path) -> None:
    assert load_recipe(path).name == path.stem


def test_settings_are_laid_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('env = "backoffice"\n[learn]\niterations = 3\n')
    recipe = load_recipe(path, (("learn.iterations", 5), ("credit.preset", "grpo"), ("loss.clip_high", 0.4)))
    assert (recipe.name, recipe.learn.iterations, recipe.preset.loss.clip_high) == ("mine", 5, 0.4)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "must name its environment"),
        ({"learning": 1}, "no key 'learning'; have credit"),
        ({"learn": {"iteration": 5}}, "no key 'learn.iteration'; have"),
        ({"learn": {"iterations": "many"}}, "learn.iterations is 'many'; it must be a whole number"),
        ({"learn": {"iterations": True}}, "it must be a whole number"),
        ({"learn": {"learning_rate": -1}}, "must not be negative"),
        ({"learn": {"schedule": "zigzag"}}, "have 'constant', 'linear', 'cosine'"),
        ({"tasks": {"levels": 1}}, "tasks.levels is 1; it must be a list"),
        ({"credit": {"preset": "gigo"}}, "no preset 'gigo'"),
        ({"credit": {"preset": "gigpo", "omega": 1}}, "no option 'omega'"),
        ({"credit": {"preset": "ppo"}}, "preset 'ppo' needs value"),
        ({"rollout": {"episodes": 1}}, "a group of one has nothing to be compared with"),
        ({"rollout": {"temperature": 0}}, "must be above 0"),
        ({"rollout": {"groups": 0}}, "rollout.groups must be 1 or more"),
        ({"model": {"heads": 5}}, "model.heads is 5: it must be even"),
        ({"loss": {"kl": 0.1}}, "training keeps none; set loss.kl = 0"),
        ({"credit": {"preset": "flow_grpo"}}, "training keeps none; set loss.kl = 0"),
        ({"loss": {"clip": 0.2}}, "no key 'loss.clip'"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused(table: dict[str, Any], says: str) -> None:
    given = table if not table else {"env": "backoffice", **table}
    with pytest.raises(ConfigError, match=says):
        make_recipe(given)


def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("env = [")
    with pytest.raises(ConfigError, match=r"recipe '.*bad\.toml'"):
        load_recipe(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="not found"):
        load_recipe(tmp_path / "absent.toml")
