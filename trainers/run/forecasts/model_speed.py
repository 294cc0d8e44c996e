"""Speed of a recipe's model on this machine: drawing and learning, each timed for a few seconds before training."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gymcp.agents.policies.engine.engine import Engine, EngineOptions, open_engine
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.token_rows import Example
from gymcp.trainers.recipe.model import TrainableModel, load_trainable
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.demonstration_rows import demonstration_examples, tokenize_record
from gymcp.trainers.run.forecasts.rehearsal import Rehearsal, TokenCounts
from gymcp.trainers.run.forecasts.size import ModelShape
from gymcp.trainers.run.training_run import limit_update_threads, make_learner_settings
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Sampled, Sampling

DRAW_SECONDS = 3.0
"""Seconds after which drawing is stopped."""
UPDATE_SECONDS = 1.0
"""Seconds in which an update is timed again and again."""
MAX_CPU_FLOP, MAX_GPU_FLOP = 6e10, 2e13
"""Most floating-point operations of the timed update: at most a few seconds on two cores, and on a GPU."""
FLOP_PER_WEIGHT = 6
"""Operations of an update per weight and token: forward and backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSpeed:
    """Time of an update, the mean of those that were timed."""

    wanted: int
    """Episodes of an update of this recipe."""
    timed: int
    """Episodes of those that were timed: fewer if the wanted ones would take longer than a few seconds."""
    seconds: float
    """Seconds of an update of the wanted size, in proportion to the timed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpeed:
    """Speed of the model at the work of this recipe."""

    together: int
    """Episodes for which tokens were drawn at a time."""
    tokens_per_second: float
    """Tokens drawn per second in all episodes together; reading their prompts is included."""
    warm_update: UpdateSpeed
    update: UpdateSpeed


async def time_model(
    recipe: Recipe, played: Rehearsal, tokens: TokenCounts, shape: ModelShape, folder: Path, *, together: int
) -> ModelSpeed | str:
    """Time the model in `folder` on the played episodes, with `together` of them at a time; or why that is not done.

    The model is loaded anew, and its folder stays as it is.
    """
    flop = FLOP_PER_WEIGHT * shape.parameters * max(tokens.longest, 1)
    rows = int((MAX_GPU_FLOP if torch.cuda.is_available() else MAX_CPU_FLOP) // flop)
    if recipe.rollout.engine != "embedded":
        return "the vLLM server that draws is not started here"
    if not rows:
        return (
            f"a model of {shape.parameters / 1e6:,.0f} million weights takes longer than the few seconds of this test"
        )
    if tokens.longest > tokens.context:
        return "the episode that was tried is longer than model.context"
    trainable = load_trainable(recipe.model, folder, recipe.seed)
    with limit_update_threads(trainable):
        tokens_per_second = await _time_drawing(recipe, trainable, played, min(together, recipe.rollout.slots))
        if tokens_per_second is None:
            return f"no answer of the model was drawn in {DRAW_SECONDS:g} s"
        examples = demonstration_examples(
            (played.first, *played.others), trainable.renderer, most_tokens=trainable.context
        )
        learner = Learner(trainable.model, make_learner_settings(recipe, trainable))
        _update(learner, examples, 1)  # the first one allocates
        at_once = -(-recipe.rollout.groups * recipe.rollout.episodes // recipe.learn.minibatches)
        return ModelSpeed(
            together=min(together, recipe.rollout.slots),
            tokens_per_second=tokens_per_second,
            warm_update=_time_update(learner, examples, recipe.warm_start.batch_size, rows),
            update=_time_update(learner, examples, at_once, rows),
        )


async def _time_drawing(recipe: Recipe, trainable: TrainableModel, played: Rehearsal, together: int) -> float | None:
    """Tokens per second while the model answers in the played episodes' places; None if it completed no answer."""
    options = EngineOptions(max_context=trainable.context, stop_ids=trainable.end_ids, seed=recipe.seed)
    records = [tokenize_record(record, trainable.renderer) for record in (played.first, *played.others)]
    turns = [[step.sampled for step in record.steps if step.sampled is not None] for record in records]
    async with open_engine(trainable.model, slots=recipe.rollout.slots, options=options) as engine:
        drawn: list[Sampled] = []
        started = time.perf_counter()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAW_SECONDS):
                chosen = itertools.islice(itertools.cycle(turns), together)
                await asyncio.gather(*(_answer(engine, recipe, each, drawn) for each in chosen))
        tokens = sum(len(sample.ids) for sample in drawn)
        return tokens / (time.perf_counter() - started) if tokens else None


async def _answer(engine: Engine, recipe: Recipe, turns: Sequence[Sampled], drawn: list[Sampled]) -> None:
    """Draw an answer of the same length at each turn of an episode, and add it to `drawn`."""
    for turn in turns:
        settings = Sampling(max_tokens=max(len(turn.ids), 1), temperature=recipe.rollout.temperature)
        drawn.append(await engine.sample(turn.prompt_ids, settings))


def _time_update(learner: Learner, examples: Sequence[Example], wanted: int, most: int) -> UpdateSpeed:
    timed, count = min(wanted, most), 0
    started = time.perf_counter()
    while not count or time.perf_counter() - started < UPDATE_SECONDS:
        _update(learner, examples, timed)
        count += 1
    return UpdateSpeed(wanted=wanted, timed=timed, seconds=(time.perf_counter() - started) / count * wanted / timed)


def _update(learner: Learner, examples: Sequence[Example], rows: int) -> None:
    chosen = list(itertools.islice(itertools.cycle(examples), rows))
    learner.update(chosen, Loss(kind="likelihood"), groups=[0] * rows)
