"""The folder of the model that a recipe names."""

from __future__ import annotations

from pathlib import Path

from gymcp.agents.policies.pretrained.folders import locate_model
from gymcp.trainers.recipe.recipe import ModelRecipe


def named_model_folder(recipe: ModelRecipe) -> Path:
    """Folder of ``model.path``: a path, ``smollm2``, or a hub id, which are fetched if they are not on this machine.

    Raises UsageError if the model cannot be had.
    """
    return locate_model(recipe.path, f"model '{recipe.path}'")
