"""The models in a training run's folder: the one that training starts from, and the trained one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.recipe.model import TrainableModel, load_trainable
from gymcp.trainers.recipe.model_path import named_model_folder
from gymcp.trainers.recipe.recipe import Recipe

MODEL = "model"
"""Folder of the run that holds the tiny model a recipe without `model.path` starts from."""
FINAL = "final"
"""Folder of the run that holds the trained model, which `--policy local:PATH` and transformers load."""


def model_folder(recipe: Recipe, folder: Path) -> Path:
    """Folder of the model that a run in `folder` starts from."""
    return named_model_folder(recipe.model) if recipe.model.path else folder / MODEL


def save_final_model(recipe: Recipe, folder: Path, trainable: TrainableModel, learner: Learner) -> None:
    """Write the trained model and its tokenizer, with a LoRA adapter merged into the weights."""
    weights = learner.full_state_dict()
    if weights is not None:  # the model here has only a shard of each weight
        trainable = load_trainable(recipe.model, model_folder(recipe, folder), recipe.seed, device="cpu")
        trainable.model.load_state_dict(weights)
    model: Any = trainable.model
    merged = model.merge_and_unload() if recipe.model.lora_rank else model
    merged.save_pretrained(folder / FINAL)
    trainable.renderer.tokenizer.save_pretrained(folder / FINAL)
