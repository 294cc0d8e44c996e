"""Credit for each step, gradients, and the training loop. Credit takes numpy only; the rest needs the extra `train`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymcp.exports import make_getattr

if TYPE_CHECKING:
    from gymcp.trainers.credit.assign import Credit, advantages, assign_credit
    from gymcp.trainers.credit.estimators import AdvantageTerm, StdScale
    from gymcp.trainers.credit.presets import LossTerm, Preset, make_preset
    from gymcp.trainers.credit.step_batch import StepBatch, batch_of
    from gymcp.trainers.credit.tree.pairs import StepPairs, find_step_pairs
    from gymcp.trainers.credit.tree.presets import make_tree_preset
    from gymcp.trainers.credit.tree.step_tree import StepTree, make_tree
    from gymcp.trainers.credit.tree.text_segments import credit_segments, cut_text
    from gymcp.trainers.credit.tree.tree_batch import join_episodes, make_tree_batch
    from gymcp.trainers.learner.learner import Learner
    from gymcp.trainers.learner.learner_settings import LearnerSettings
    from gymcp.trainers.learner.preference_loss import preference_loss, sum_logprobs
    from gymcp.trainers.recipe.entropy_branching import branch_probability, measure_top_entropy
    from gymcp.trainers.recipe.load import load_recipe
    from gymcp.trainers.recipe.recipe import Recipe
    from gymcp.trainers.run.loop import train
    from gymcp.trainers.run.values.step_values import (
        StepValues,
        StepValueSettings,
        fit_step_values,
        load_step_values,
        save_step_values,
    )
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
    "StepPairs",
    "StepTree",
    "StepValueSettings",
    "StepValues",
    "advantages",
    "assign_credit",
    "batch_of",
    "branch_probability",
    "credit_segments",
    "cut_text",
    "find_step_pairs",
    "fit_step_values",
    "join_episodes",
    "load_recipe",
    "load_step_values",
    "make_preset",
    "make_tree",
    "make_tree_batch",
    "make_tree_preset",
    "measure_top_entropy",
    "preference_loss",
    "save_step_values",
    "sum_logprobs",
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
            "credit.tree.pairs": "StepPairs find_step_pairs",
            "credit.tree.presets": "make_tree_preset",
            "credit.tree.step_tree": "StepTree make_tree",
            "credit.tree.text_segments": "credit_segments cut_text",
            "credit.tree.tree_batch": "join_episodes make_tree_batch",
            "learner.learner": "Learner",
            "learner.learner_settings": "LearnerSettings",
            "learner.preference_loss": "preference_loss sum_logprobs",
            "recipe.load": "load_recipe",
            "recipe.recipe": "Recipe",
            "recipe.entropy_branching": "branch_probability measure_top_entropy",
            "run.loop": "train",
            "run.values.step_values": (
                "StepValues StepValueSettings fit_step_values load_step_values save_step_values"
            ),
            "settings.loss": "Loss",
        },
    )
