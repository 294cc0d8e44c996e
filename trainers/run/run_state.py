"""What a training run's folder says of it, without its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gymcp.errors import ConfigError, StoreError
from gymcp.store.untrusted_files import read_foreign
from gymcp.store.validation import require_integer
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.types import Json

STATE = "training.json"
FINISHED = "finished"
"""How a run ended of which all iterations were done."""


def read_state(folder: Path) -> Mapping[str, Json]:
    """Raises ConfigError where it cannot be read."""
    try:
        state = json.loads(read_foreign(folder, STATE))
        if not isinstance(state, dict) or not isinstance(state.get("recipe"), dict):
            raise ValueError("it holds no recipe")
        require_integer(state.get("iteration"), "iteration")
        return state
    except (OSError, StoreError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"training run {folder}: its {STATE} cannot be read: {error}") from error


def trained_by(folder: Path) -> tuple[Recipe, int]:
    """The recipe of a training run and its whole iterations so far. Raises ConfigError where they cannot be read."""
    state = read_state(folder)
    return make_recipe(state["recipe"]), int(state["iteration"])
