"""The state file of a training run: its recipe, its progress and how it ended. The weights lie elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gymcp.errors import ConfigError, StoreError
from gymcp.store.run_folder import TRAINING_FILE
from gymcp.store.untrusted_files import read_foreign
from gymcp.store.validation import require_integer
from gymcp.trainers.recipe.load import restore_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curricula.protocol import CurriculumState, restore_curriculum
from gymcp.types import Json

FINISHED = "finished"
"""Reason that a run ended with: all of its iterations were done."""


def read_state(folder: Path) -> Mapping[str, Json]:
    """The content of the state file. Raises ConfigError if it cannot be read."""
    try:
        state = json.loads(read_foreign(folder, TRAINING_FILE))
        if not isinstance(state, dict) or not isinstance(state.get("recipe"), dict):
            raise ValueError("it holds no recipe")
        require_integer(state.get("iteration"), "iteration")
        return state
    except (OSError, StoreError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"training run {folder}: its {TRAINING_FILE} cannot be read: {error}") from error


def read_curriculum(state: Mapping[str, Json], recipe: Recipe) -> CurriculumState:
    """The curriculum's state in the content of a state file; a run of an earlier version had one sequence of groups."""
    stored = state.get("curriculum")
    if stored is None:
        return CurriculumState(groups=int(state["iteration"]) * recipe.rollout.groups)
    return restore_curriculum(stored)


def read_settings(state: Mapping[str, Json]) -> Mapping[str, Json]:
    """Settings of the preset in the content of a state file; empty for a run of an earlier version, which has none."""
    settings = state.get("settings")
    return settings if isinstance(settings, dict) else {}


def read_recipe_and_curriculum(folder: Path) -> tuple[Recipe, CurriculumState]:
    """The recipe of a training run, and its curriculum's state after the last complete iteration.

    Raises ConfigError if the folder has none.
    """
    state = read_state(folder)
    recipe = restore_recipe(state["recipe"])
    return recipe, read_curriculum(state, recipe)
