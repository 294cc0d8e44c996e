"""Supervised learning from recorded episodes, before anything is sampled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from gymcp.trainers.learner.distributed_processes import Accelerated
from gymcp.trainers.learner.learner import LearnerSettings
from gymcp.trainers.learner.token_rows import Example
from gymcp.trainers.recipe.model import TrainableModel, uses_bfloat16
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.demonstration_rows import demonstrations
from gymcp.trainers.run.distributed_controller import make_learner
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Json, Trajectory


def examples_shown(recipe: Recipe, pupil: TrainableModel, shown: Sequence[Trajectory]) -> list[Example]:
    """What the records teach. Raises ConfigError where all are longer than the pupil's context."""
    return demonstrations(
        shown, pupil.renderer, most_tokens=pupil.context, context=recipe.warm_start.prompt_loss_weight
    )


def warm_start(
    recipe: Recipe, pupil: TrainableModel, shown: Sequence[Trajectory], processes: Accelerated | None
) -> Iterator[dict[str, Json]]:
    """Teaches the pupil what the records show, and tells of every pass over them."""
    warm = recipe.warm_start
    examples = examples_shown(recipe, pupil, shown)
    steps = warm.epochs * -(-len(examples) // warm.batch_size)
    settings = LearnerSettings(
        learning_rate=warm.learning_rate,
        warmup_steps=max(steps // 20, 1),
        schedule="cosine",
        total_steps=steps,
        micro_batch_tokens=recipe.learn.micro_batch_tokens,
        autocast=uses_bfloat16(recipe.model, on_gpu=pupil.model.device.type != "cpu"),
        workers=pupil.workers,
    )
    teacher = make_learner(pupil, settings, processes)
    order = np.random.default_rng(recipe.seed)
    started = time.perf_counter()
    tokens = 0
    for number in range(warm.epochs):
        losses = []
        for batch in _batches(examples, order, warm.batch_size):
            # one group: what all prompts begin with is encoded once
            losses.append(teacher.update(batch, Loss(kind="likelihood"), groups=[0] * len(batch)).loss)
            tokens += sum(len(each.row.token_ids) for each in batch)
        seconds = time.perf_counter() - started
        yield {
            "phase": "warm start",
            "epoch": number + 1,
            "of": warm.epochs,
            "examples": len(examples),
            "loss": float(np.mean(losses)),
            "seconds": seconds,
            "left_seconds": seconds / (number + 1) * (warm.epochs - number - 1),
            "tokens_per_second": tokens / seconds,
        }


def _batches(examples: Sequence[Example], order: np.random.Generator, size: int) -> Iterator[list[Example]]:
    shuffled = order.permutation(len(examples)).tolist()
    for at in range(0, len(shuffled), size):
        yield [examples[i] for i in shuffled[at : at + size]]
