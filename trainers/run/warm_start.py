"""The warm start: supervised learning from demonstrations, before anything is sampled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from gymcp.trainers.learner.distributed_processes import Accelerated
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.token_rows import Example
from gymcp.trainers.recipe.model import TrainableModel, uses_bfloat16
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.demonstration_rows import demonstration_examples
from gymcp.trainers.run.distributed_controller import make_learner
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Json, Trajectory


def warm_start_examples(recipe: Recipe, trainable: TrainableModel, records: Sequence[Trajectory]) -> list[Example]:
    """The training examples of demonstrations. Raises ConfigError if all are longer than the model's context."""
    return demonstration_examples(
        records,
        trainable.renderer,
        most_tokens=trainable.context,
        prompt_loss_weight=recipe.warm_start.prompt_loss_weight,
    )


def warm_start(
    recipe: Recipe, trainable: TrainableModel, records: Sequence[Trajectory], processes: Accelerated | None
) -> Iterator[dict[str, Json]]:
    """Train the model on demonstrations; a row of metrics after every epoch."""
    warm = recipe.warm_start
    examples = warm_start_examples(recipe, trainable, records)
    steps = warm.epochs * -(-len(examples) // warm.batch_size)
    settings = LearnerSettings(
        learning_rate=warm.learning_rate,
        warmup_steps=max(steps // 20, 1),
        schedule="cosine",
        total_steps=steps,
        micro_batch_tokens=recipe.learn.micro_batch_tokens,
        autocast=uses_bfloat16(recipe.model, on_gpu=trainable.model.device.type != "cpu"),
        workers=trainable.workers,
    )
    learner = make_learner(trainable, settings, processes)
    rng = np.random.default_rng(recipe.seed)
    started = time.perf_counter()
    tokens = 0
    for epoch in range(warm.epochs):
        losses = []
        for batch in _batches(examples, rng, warm.batch_size):
            # all in one group, so that the common beginning of all prompts is encoded once
            losses.append(learner.update(batch, Loss(kind="likelihood"), groups=[0] * len(batch)).loss)
            tokens += sum(len(example.row.token_ids) for example in batch)
        seconds = time.perf_counter() - started
        yield {
            "phase": "warm start",
            "epoch": epoch + 1,
            "of": warm.epochs,
            "examples": len(examples),
            "loss": float(np.mean(losses)),
            "seconds": seconds,
            "left_seconds": seconds / (epoch + 1) * (warm.epochs - epoch - 1),
            "tokens_per_second": tokens / seconds,
        }


def _batches(examples: Sequence[Example], rng: np.random.Generator, size: int) -> Iterator[list[Example]]:
    """The examples in a new random order, in batches of `size`."""
    order = rng.permutation(len(examples)).tolist()
    for at in range(0, len(order), size):
        yield [examples[i] for i in order[at : at + size]]
