"""A training that ends in mid-run as if it had been killed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gymcp.envs.spec import LoadedEnv
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.loop import train
from gymcp.types import Json


class Interruption(Exception):
    """The end of the run."""


def train_until(iteration: int, recipe: Recipe, env: LoadedEnv, folder: Path) -> None:
    """Train until the row of this iteration would be logged; the iteration before is the last complete one."""

    def interrupt(row: Mapping[str, Json]) -> None:
        if row.get("iteration") == iteration:
            raise Interruption

    with pytest.raises(Interruption):
        train(recipe, env, folder, resume=False, on_row=interrupt)
