"""Warm start, then again and again: rollouts, credit, update; now and then a look at held-out tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError, EnvInfraError
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.store import TrajectoryStore
from gymcp.trainers.credit.assign import step_credits
from gymcp.trainers.credit.presets import GOLD
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.learner.critic import Critic
from gymcp.trainers.learner.distributed_processes import Accelerated
from gymcp.trainers.learner.learner import Learner, LearnerSettings
from gymcp.trainers.recipe.model import Pupil, in_bfloat16, is_small, load_pupil, make_folder, texts_of
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import demonstrated_tasks, held_out, practised
from gymcp.trainers.rollouts.engines import Sampler, open_sampler, served
from gymcp.trainers.rollouts.recorded_demonstrations import recorded_episodes
from gymcp.trainers.rollouts.rollouts import Ground, told
from gymcp.trainers.run.checkpoints import Saved, load_training, note_end, save_training, saved_training
from gymcp.trainers.run.distributed_controller import load_everywhere, make_learner
from gymcp.trainers.run.early_stopping import MAX_LOST, collapse, lost
from gymcp.trainers.run.iteration import Lessons, Repetition
from gymcp.trainers.run.metrics_log import Progress
from gymcp.trainers.run.run_state import FINISHED
from gymcp.trainers.run.warm_start import examples_shown, warm_start
from gymcp.types import Json, Trajectory

MODEL = "model"
FINAL = "final"
"""The trained model, in a folder that `--policy local:PATH` and transformers load."""
Tell = Callable[[Mapping[str, Json]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How training ended."""

    iterations: int
    reason: str
    """`FINISHED`, or why it stopped before."""


def train(
    recipe: Recipe,
    env: LoadedEnv,
    folder: Path,
    *,
    resume: bool,
    tell: Tell = lambda row: None,
    processes: Accelerated | None = None,
) -> Ending:
    """Trains in `folder`, telling each row of metrics; with `resume` goes on after the last whole iteration.

    With `processes`, this is the main one, and the others `follow` it.

    Raises ConfigError for a folder that holds another run or tasks that lack what the preset needs, and EnvInfraError
    where nothing can be rolled out.
    """
    saved = saved_training(folder, recipe, resume=resume)
    if processes is not None and processes.spread and recipe.rollout.engine == "embedded":
        raise ConfigError(
            f"recipe '{recipe.name}': the embedded engine needs whole weights, and FSDP spreads them over processes;"
            " set rollout.engine to 'vllm', or launch with DDP (accelerate launch --multi_gpu)"
        )
    _check_tasks(recipe, env)
    _check_gold(recipe, env)
    get_sandbox(recipe.rollout.sandbox)  # says whether there is one before anything is written
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"training run {folder}: cannot be made: {error.strerror}") from error
    disable_progress_bar()
    with _reproducible(recipe), served(recipe) as server:
        return asyncio.run(_Run(recipe, env, folder, tell, server, processes).run(saved))


@contextmanager
def _reproducible(recipe: Recipe) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or recipe.deterministic)
    torch.manual_seed(recipe.seed)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _check_tasks(recipe: Recipe, env: LoadedEnv) -> None:
    """A family, level, split or run that there is not is found out before the warm start, not after it."""
    one = replace(recipe, warm_start=replace(recipe.warm_start, tasks=min(recipe.warm_start.tasks, 1)))
    practised(env, recipe, 0)
    if recipe.warm_start.run:
        recorded_episodes(env, one)
    else:
        demonstrated_tasks(env, one)
    for split in {*recipe.evaluation.splits, *recipe.evaluation.whole_splits}:
        held_out(env, recipe, split, 1)


def _check_gold(recipe: Recipe, env: LoadedEnv) -> None:
    if GOLD not in recipe.preset.needs:
        return
    for task, _ in practised(env, recipe, 0):
        if not any(turn.calls or turn.final_text for turn in task.gold):
            raise ConfigError(
                f"recipe '{recipe.name}': preset '{recipe.preset_name}' compares with gold, and task '{task.id}' of"
                f" '{recipe.env}' has none; choose a preset that needs none"
            )


class _Run:
    def __init__(
        self,
        recipe: Recipe,
        env: LoadedEnv,
        folder: Path,
        tell: Tell,
        server: str,
        processes: Accelerated | None,
    ) -> None:
        self.recipe, self.env, self.folder, self.tell, self.server = recipe, env, folder, tell, server
        self.processes = processes
        self.trackers = Trackers()
        self.iteration = 0

    async def run(self, saved: Saved | None) -> Ending:
        async with AsyncExitStack() as stack:
            sandbox = await stack.enter_async_context(open_warm_sandbox(get_sandbox(self.recipe.rollout.sandbox)))
            store = stack.enter_context(TrajectoryStore.open(self.folder, write=True))
            self.ground = Ground(env=self.env, recipe=self.recipe, sandbox=sandbox, store=store)
            repeats = self.recipe.learn.demonstrations
            shown = await self.ground.shown() if saved is None or repeats else []
            if saved is None:
                make_folder(self.recipe.model, self.folder / MODEL, texts_of(shown), seed=self.recipe.seed)
            pupil = load_everywhere(self.recipe, self._model_folder(), self.processes)
            stack.enter_context(_one_thread(pupil))
            critic = self._critic(pupil)
            self.examples = examples_shown(self.recipe, pupil, shown) if repeats else []
            if saved is None:
                self.progress = stack.enter_context(Progress(self.folder))
                if shown:
                    self._warm_up(pupil, shown)
                learner = self._learner(pupil)
                if self.recipe.preset.loss.kl:
                    learner.keep_reference()
                save_training(self.folder, self.recipe, 0, learner, critic, self.trackers)
            else:
                learner = self._learner(pupil)
                load_training(self.folder, saved, learner, critic)
                self.iteration, self.trackers = saved.iteration, saved.trackers
                self.progress = stack.enter_context(Progress(self.folder, until=self.iteration))
            opened = open_sampler(self.recipe, pupil, learner, self.folder, self.server, str(self.iteration))
            sampler = await stack.enter_async_context(opened)
            return await self._iterate(pupil, learner, critic, sampler)

    def _warm_up(self, pupil: Pupil, shown: Sequence[Trajectory]) -> None:
        """Raises ConfigError where it leads nowhere."""
        try:
            for row in warm_start(self.recipe, pupil, shown, self.processes):
                self.tell(row)
        except FloatingPointError as error:
            rate = self.recipe.warm_start.learning_rate
            raise ConfigError(
                f"training: warm start: {error}; is warm_start.learning_rate, {rate:g}, too high?"
            ) from error

    # ------------------------------------------------------------------------------------------------------- the parts

    def _model_folder(self) -> Path:
        return Path(self.recipe.model.path) if self.recipe.model.path else self.folder / MODEL

    def _learner(self, pupil: Pupil) -> Learner:
        learn = self.recipe.learn
        settings = LearnerSettings(
            learning_rate=learn.learning_rate,
            max_grad_norm=learn.max_grad_norm,
            warmup_steps=learn.warmup_steps,
            schedule=learn.schedule,
            total_steps=learn.iterations * learn.updates * learn.passes * (2 if learn.demonstrations else 1),
            micro_batch_tokens=learn.micro_batch_tokens,
            temperature=self.recipe.rollout.temperature,
            autocast=in_bfloat16(self.recipe.model, on_gpu=pupil.model.device.type != "cpu"),
            workers=pupil.workers,
        )
        return make_learner(pupil, settings, self.processes)

    def _critic(self, pupil: Pupil) -> Critic | None:
        if "value" not in self.recipe.preset.needs:
            return None
        width = pupil.model.config.get_text_config().hidden_size
        learn = self.recipe.learn
        return Critic(
            width,
            pupil.model.device,
            learning_rate=learn.critic_learning_rate,
            epochs=learn.critic_epochs,
            seed=self.recipe.seed,
        )

    # -------------------------------------------------------------------------------------------------------- the loop

    async def _iterate(self, pupil: Pupil, learner: Learner, critic: Critic | None, sampler: Sampler) -> Ending:
        learn = self.recipe.learn
        if not self.progress.rows:
            self._note({"iteration": 0, **await self._test(pupil, sampler, whole=True)})
        while self.iteration < learn.iterations:
            if stop := collapse(self.progress.rows, learn):
                return self._end(pupil, learner, stop)
            try:
                row = await self._one(pupil, learner, critic, sampler)
            except FloatingPointError as error:
                # earlier updates of this iteration may have led there: what is kept is the last whole one
                if saved := saved_training(self.folder, self.recipe, resume=True):
                    load_training(self.folder, saved, learner, critic)
                return self._end(pupil, learner, str(error))
            self.iteration += 1
            every = self.recipe.evaluation.every
            last = self.iteration == learn.iterations
            if last or (every and self.iteration % every == 0):
                row |= await self._test(pupil, sampler, whole=last)
            self._note(row)
            save_training(self.folder, self.recipe, self.iteration, learner, critic, self.trackers)
        return self._end(pupil, learner, collapse(self.progress.rows, learn) or FINISHED)

    async def _one(
        self, pupil: Pupil, learner: Learner, critic: Critic | None, sampler: Sampler
    ) -> dict[str, Json]:  # fmt: skip
        """One iteration's row. Raises EnvInfraError where all episodes were lost some times running."""
        started = time.perf_counter()
        jobs = self.ground.jobs(self.iteration)
        records = await self.ground.practice(jobs, pupil, sampler.policy)
        rolled = time.perf_counter()
        row: dict[str, Json] = {"iteration": self.iteration + 1, **told(records)}
        scored = [record for record in records if record.outcome.has_score]
        if not scored:
            if lost(self.progress.rows) + 1 >= MAX_LOST:
                why = records[-1].reason
                raise EnvInfraError(f"training: every episode of {MAX_LOST} iterations was lost; the last: {why}")
            return row | {"skipped": "every episode was lost to infrastructure"}
        if not any(record.steps for record in scored):
            raise ConfigError(
                f"training: no episode of iteration {self.iteration + 1} has a step; the last ended with"
                f" {scored[-1].outcome.value}: {scored[-1].reason or 'no reason given'}; is model.context"
                f" ({pupil.context} tokens) too small for the prompts?"
            )
        gold = {job.task.id: job.task for job in jobs}
        learn = self.recipe.learn
        lessons = Lessons(
            self.recipe.preset,
            learner,
            critic,
            updates=learn.updates,
            passes=learn.passes,
            repetition=self._repetition(),
        )
        await sampler.update(str(self.iteration + 1), lambda: lessons.learn(scored, gold, self.trackers))
        self.trackers = lessons.trackers
        if lessons.credit is not None:
            recipe, options = self.recipe, {key: value for key, value in self.recipe.credit.items() if key != "preset"}
            self.ground.store.add_credits(
                step_credits(lessons.credit, recipe.preset, name=recipe.preset_name, options=options)
            )
        ended = time.perf_counter()
        return row | {
            **lessons.metrics,
            "seconds": ended - started,
            "seconds/rollout": rolled - started,
            "seconds/credit": lessons.credit_s,
            "seconds/update": ended - rolled - lessons.credit_s,
        }

    def _repetition(self) -> Repetition | None:
        """What is drawn is a function of the recipe's seed and the iteration's number."""
        if not self.examples:
            return None
        draw = np.random.default_rng([self.recipe.seed, self.iteration])
        return Repetition(examples=self.examples, size=self.recipe.learn.demonstrations, draw=draw)

    async def _test(self, pupil: Pupil, sampler: Sampler, *, whole: bool) -> dict[str, Json]:
        started = time.perf_counter()
        found = await self.ground.test(pupil, sampler.policy, whole=whole)
        return found | {"seconds/evaluation": time.perf_counter() - started}

    def _note(self, row: Mapping[str, Json]) -> None:
        """Whatever a clock says has no place among metrics that are the same every time."""
        kept = {key: value for key, value in row.items() if not (self.recipe.deterministic and "seconds" in key)}
        self.progress.add(kept)
        self.tell(row)

    def _end(self, pupil: Pupil, learner: Learner, reason: str) -> Ending:
        weights = learner.weights()
        if weights is not None:
            pupil = load_pupil(self.recipe.model, self._model_folder(), self.recipe.seed, place="cpu")
            pupil.model.load_state_dict(weights)
        model: Any = pupil.model
        whole = model.merge_and_unload() if self.recipe.model.lora_rank else model
        whole.save_pretrained(self.folder / FINAL)
        pupil.renderer.tokenizer.save_pretrained(self.folder / FINAL)
        note_end(self.folder, reason)
        return Ending(iterations=self.iteration, reason=reason)


@contextmanager
def _one_thread(pupil: Pupil) -> Iterator[None]:
    """For each operation of a small model on CPU cores, which servers use as well; updates take several workers."""
    before = torch.get_num_threads()
    if is_small(pupil.model):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
