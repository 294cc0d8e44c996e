"""What a training run's folder says of it, without its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.trainers.recipe import Recipe
from gymcp.trainers.recipe_file import make_recipe
from gymcp.types import Json

STATE = "training.json"
FINISHED = "finished"
"""How a run ended of which all iterations were done."""


def read_state(folder: Path) -> Mapping[str, Json]:
    """Raises ConfigError where it cannot be read."""
    try:
        state: Mapping[str, Json] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        return state
    except (OSError, ValueError) as error:
        raise ConfigError(f"training run {folder}: its {STATE} cannot be read: {error}") from error


def trained_by(folder: Path) -> tuple[Recipe, int]:
    """The recipe of a training run and its whole iterations so far. Raises ConfigError where they cannot be read."""
    state = read_state(folder)
    return make_recipe(state["recipe"]), int(state["iteration"])
