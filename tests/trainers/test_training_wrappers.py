"""Training through wrappers: what a recipe puts between the agent and its tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shop import ENV as SHOP

from gymcp.envs import load_spec
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore, open_run
from gymcp.trainers.recipe.environment import wrap_environment
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.run.loop import train

TABLE: dict[str, Any] = {
    "env": "backoffice",
    "name": "small",
    "model": {"vocabulary": 600, "hidden": 32, "layers": 2, "heads": 2, "context": 640},
    "tasks": {"levels": [1], "families": ["cancel", "ticket"]},
    "warm_start": {"tasks": 6, "epochs": 1, "batch_size": 3},
    "rollout": {"groups": 2, "episodes": 2, "max_tokens": 8, "max_turns": 2, "concurrency": 4, "slots": 4},
    "learn": {"iterations": 1},
    "evaluation": {"every": 0, "tasks": 1},
}


def test_a_recipe_puts_wrappers_between_the_agent_and_its_tools(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\ntools = ["cancel_order"]\neffect = "forbid"\n')
    wrappers = {"stress": ["renamed"], "retrieve": 4, "privileges": str(rules)}
    recipe = make_recipe({**TABLE, "wrappers": wrappers})
    env = wrap_environment(recipe, load_spec("backoffice"))
    assert len(env.spec.layers) == 3
    train(recipe, env, tmp_path / "run", resume=False)
    with TrajectoryStore.open(tmp_path / "run") as store:
        tools = {tool.name for each in store.iter_trajectories() for tool in each.steps[0].observation.tools}
    assert "search_tools" in tools
    assert not any("_" in name for name in tools - {"search_tools"}), "all other names are stressed"
    config = open_run(tmp_path / "run").config
    assert (config["stress"], config["retrieval"]["top_k"]) == (["renamed"], 4)


def test_a_recipe_trains_under_an_attack(tmp_path: Path) -> None:
    less = {"tasks": {}, "warm_start": {"tasks": 1, "epochs": 1}}
    sizes = {"rollout": TABLE["rollout"] | {"groups": 1}, "evaluation": {"every": 1, "tasks": 1}}
    recipe = make_recipe({**TABLE, **less, **sizes, "env": "shop", "wrappers": {"attack": "direct"}})
    train(recipe, wrap_environment(recipe, SHOP), tmp_path / "run", resume=False)
    with TrajectoryStore.open(tmp_path / "run") as store:
        episodes = list(store.iter_trajectories())
    assert [each.task for each in episodes] == ["pay_the_grocer.rob"] * 2
    assert all(each.components.keys() == {"utility", "attack"} for each in episodes)
    assert open_run(tmp_path / "run").config["attack"] == "direct"


@pytest.mark.parametrize(
    ("wrappers", "says"),
    [
        ({"stress": ["rain"]}, "no stressor 'rain'; have latency"),
        ({"attack": "direct"}, "its tasks name no place where an attacker could write"),
        ({"privileges": "/no/such.toml"}, "privileges '/no/such.toml': cannot be read"),
        ({"tool_budget": 9}, "say how many with --retrieve"),
    ],
)
def test_wrappers_that_do_not_fit_are_one_line(wrappers: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        wrap_environment(make_recipe({**TABLE, "wrappers": wrappers}), load_spec("backoffice"))
