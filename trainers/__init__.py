"""Credit for each step, gradients, and the training loop. Credit takes numpy only; the rest needs the extra `train`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymcp.exports import make_getattr

if TYPE_CHECKING:
    from gymcp.trainers.credit.assign import Credit, advantages, assign_credit
    from gymcp.trainers.credit.estimators import AdvantageTerm, StdScale
    from gymcp.trainers.credit.presets import LossTerm, Preset, make_preset
    from gymcp.trainers.credit.step_batch import StepBatch, batch_of
    from gymcp.trainers.learner.learner import Learner
    from gymcp.trainers.learner.learner_settings import LearnerSettings
    from gymcp.trainers.recipe.load import load_recipe
    from gymcp.trainers.recipe.recipe import Recipe
    from gymcp.trainers.run.loop import train
    from gymcp.trainers.settings.loss import Loss

__all__ = [
    "AdvantageTerm",
    "Credit",
    "Learner",
    "LearnerSettings",
    "Loss",
    "LossTerm",
    "Preset",
    "Recipe",
    "StdScale",
    "StepBatch",
    "advantages",
    "assign_credit",
    "batch_of",
    "load_recipe",
    "make_preset",
    "train",
]

if not TYPE_CHECKING:
    __getattr__ = make_getattr(
        __name__,
        {
            "credit.assign": "Credit advantages assign_credit",
            "credit.estimators": "AdvantageTerm StdScale",
            "credit.presets": "LossTerm Preset make_preset",
            "credit.step_batch": "StepBatch batch_of",
            "learner.learner": "Learner",
            "learner.learner_settings": "LearnerSettings",
            "recipe.load": "load_recipe",
            "recipe.recipe": "Recipe",
            "run.loop": "train",
            "settings.loss": "Loss",
        },
    )
