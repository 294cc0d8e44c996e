"""The number of episodes at a time that a training run without ``rollout.concurrency`` chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.runner.concurrency import STARTED_SHARE, ConcurrencyChoice
from gymcp.envs import load_env, load_spec
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.concurrency import choose_rollout_concurrency, fill_concurrency

BANK = load_env(load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py")))


def recipe_with(**rollout: Any) -> Recipe:
    return make_recipe({"env": "bank", "rollout": rollout})


def choose(**rollout: Any) -> ConcurrencyChoice:
    return choose_rollout_concurrency(recipe_with(**rollout), BANK, None)


def test_a_recipe_without_a_number_takes_one_for_each_slot() -> None:
    choice = choose(slots=3)
    assert (choice.episodes, choice.limit.name) == (3, "slots")
    assert choice.describe("rollout.concurrency") == (
        "3 episodes at a time; the limit is the model in this process (3 slots, one an episode: rollout.slots);"
        " rollout.concurrency sets another number"
    )
    assert fill_concurrency(recipe_with(slots=3), choice).rollout.concurrency == 3


def test_a_number_in_the_recipe_is_kept() -> None:
    assert choose(slots=3, concurrency=11).to_json() == {"episodes": 11, "limit": "given"}


def test_groups_are_played_whole_beside_updates() -> None:
    choice = choose(slots=3, staleness=1, episodes=8)
    assert (choice.episodes, choice.limit.name) == (8, "group")


def test_a_program_as_agent_is_bound_by_the_cpu_or_its_memory() -> None:
    program = ProgramSettings(argv=("agent",))
    choice = choose_rollout_concurrency(recipe_with(slots=1_000), BANK, program)
    assert choice.limit.name in ("cpu", "memory", "files")
    assert choice.allowed["memory"] <= choose(slots=1_000).allowed["memory"]
    assert program.limits.memory_mb * STARTED_SHARE > 0
