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


def read_recipe_and_iterations(folder: Path) -> tuple[Recipe, int]:
    """The recipe of a training run, and the number of its complete iterations. Raises ConfigError if it has none."""
    state = read_state(folder)
    return restore_recipe(state["recipe"]), int(state["iteration"])
