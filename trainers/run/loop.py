"""The training loop: a warm start, then iterations of rollouts, credit and updates, with evaluations in between."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from gymcp.agents.runner.concurrency import ConcurrencyChoice
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError, EnvInfraError
from gymcp.store.heldout import HeldoutResult, record_heldout
from gymcp.store.run_folder import refuse_run_in_use
from gymcp.trainers.credit.assign import Credit, step_credits
from gymcp.trainers.credit.preset_functions import find_user_preset, short_name
from gymcp.trainers.credit.presets import PRESETS
from gymcp.trainers.credit.signals.options import lacks_tags
from gymcp.trainers.credit.tree.presets import TREE_PRESETS
from gymcp.trainers.learner.distributed_processes import Accelerated
from gymcp.trainers.recipe.agent import load_rollout_agent
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.preset_settings import list_settings
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.concurrency import choose_rollout_concurrency
from gymcp.trainers.rollouts.engines import open_vllm_server
from gymcp.trainers.rollouts.heldout_evaluation import evaluate_heldout
from gymcp.trainers.rollouts.rollouts import rollout_metrics
from gymcp.trainers.run.asynchronous.producer import open_producer
from gymcp.trainers.run.asynchronous.run_replay import check_replay, open_replay
from gymcp.trainers.run.checkpoints import (
    TrainingState,
    find_saved_state,
    load_training,
    record_end,
    save_training,
)
from gymcp.trainers.run.early_stopping import MAX_LOST_ITERATIONS, collapse_reason, consecutive_lost
from gymcp.trainers.run.experience.collection import Rollouts, collect
from gymcp.trainers.run.experience.recall import recall_episodes
from gymcp.trainers.run.experience.replay_buffer import remember
from gymcp.trainers.run.iteration import DemonstrationReplay, IterationResult, train_on_batch
from gymcp.trainers.run.model_files import save_final_model
from gymcp.trainers.run.preconditions import check_run, create_run_folder
from gymcp.trainers.run.provenance import (
    append_training_start,
    check_code_unchanged,
    check_tasks_unchanged,
    record_training_start,
)
from gymcp.trainers.run.run_state import FINISHED
from gymcp.trainers.run.training_run import OnRow, OpenPlayer, RunInputs, TrainingRun, open_run
from gymcp.types import Json

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a training run."""

    iterations: int
    reason: str
    """`FINISHED`, or why the run stopped before its last iteration."""


class RolloutSource(Protocol):
    """Gives the rollouts of one iteration after the other, other than by `collect` alone."""

    async def collect(self, state: TrainingState) -> Rollouts:
        """The rollouts of the next iteration."""
        ...

    def refill(self, state: TrainingState) -> TrainingState:
        """The state after further rollouts were planned; called after each update, before it is saved."""
        ...


def train(
    recipe: Recipe,
    env: LoadedEnv,
    folder: Path,
    *,
    resume: bool,
    on_row: OnRow = lambda row: None,
    on_start: Callable[[ConcurrencyChoice], None] = lambda concurrency: None,
    processes: Accelerated | None = None,
    replay: Path | None = None,
    open_player: OpenPlayer | None = None,
) -> Ending:
    """Train in `folder`; with `resume`, go on after the last complete iteration.

    `on_start` gets the number of episodes at a time, once nothing is left that would refuse the run. With `processes`,
    this is the main process, and the others run `worker_loop`. `replay`: folder of a run with ``rollout.staleness``
    whose episodes are learnt from in the order of its log, so nothing is played but evaluations. `open_player`: opens a
    player of the trained model's episodes; None: this machine plays them.

    Raises ConfigError for a folder that holds another run or for tasks that lack what the preset needs, StoreError
    if another process works on the run, EnvInfraError if no episode can be rolled out.
    """
    refuse_run_in_use(folder)
    find_saved_state(folder, recipe, resume=resume)  # an early refusal leaves no trace
    preset = build_preset(recipe)
    check_run(recipe, preset, env, processes, folder if replay is None else None)
    if replay is not None:
        check_replay(replay, recipe)
    agent = load_rollout_agent(recipe)
    own_preset = (
        None if recipe.preset_name in {*PRESETS, *TREE_PRESETS} else find_user_preset(recipe.preset_name, PRESETS)
    )
    concurrency = choose_rollout_concurrency(recipe, env, agent)
    inputs = RunInputs(
        recipe=recipe,
        preset=preset,
        env=env,
        folder=folder,
        on_row=on_row,
        processes=processes,
        agent=agent,
        concurrency=concurrency,
        open_player=open_player,
    )
    with create_run_folder(folder):
        saved = find_saved_state(folder, recipe, resume=resume)  # another process may have changed it before the lock
        if saved is None:
            record_training_start(folder, recipe, env, agent, own_preset)
        else:
            check_code_unchanged(folder, recipe, agent, own_preset)
            check_tasks_unchanged(folder, recipe, env)
            if not saved.settings:
                log.warning("training run %s: recorded no defaults of its preset, so it takes today's", folder)
                saved = replace(saved, settings=list_settings(recipe, preset))
        append_training_start(folder, {"concurrency": concurrency.to_json()})
        on_start(concurrency)
        disable_progress_bar()
        with _deterministic_torch(recipe), open_vllm_server(recipe) as server:
            return asyncio.run(_train(inputs, saved, server, replay))


async def _train(inputs: RunInputs, saved: TrainingState | None, server: str, replay: Path | None) -> Ending:
    async with open_run(inputs, saved, server) as (run, state):
        if replay is not None:
            with open_replay(run, replay) as replayed:
                return await iterate(run, state, replayed)
        if not inputs.recipe.rollout.staleness:
            return await iterate(run, state)
        async with open_producer(run, state) as (watched, planned, producer):
            return await iterate(watched, planned, producer)


async def iterate(run: TrainingRun, state: TrainingState, source: RolloutSource | None = None) -> Ending:
    """Repeat rollouts, credit and updates until the last iteration, or until there is a reason to stop early.

    `source` gives the rollouts; None: they are played before each update, and nothing is played meanwhile.
    """
    recipe, folder, setup = run.inputs.recipe, run.inputs.folder, run.setup
    if not run.log.rows:
        row = {"iteration": 0, **await evaluate(run, 0, final=True)}
        _log_row(run, row | await run.sampler.measure())
    while state.iteration < recipe.learn.iterations:
        if reason := collapse_reason(run.log.rows, recipe.learn):
            return finish(run, state, reason)
        try:
            rollouts = await (collect(run, state) if source is None else source.collect(state))
            result = await learn(run, state, rollouts) if rollouts.scored else skip(run, state, rollouts)
        except FloatingPointError as error:
            # earlier updates of this iteration may have caused it, so the last complete iteration is kept
            load_training(folder, state, setup.learner, setup.critic, setup.heads)
            return finish(run, state, str(error))
        played = {**rollout_metrics(rollouts.records, run.setup.costs), **rollouts.metrics}
        row = {"iteration": state.iteration + 1, **played, **result.metrics}
        state = TrainingState(
            iteration=state.iteration + 1,
            trackers=result.trackers,
            curriculum=rollouts.curriculum,
            replay=remember(state.replay, rollouts.scored, recipe.replay, state.iteration),
            settings=state.settings,
        )
        if source is not None:
            state = source.refill(state)
        is_last = state.iteration == recipe.learn.iterations
        if is_last or (recipe.evaluation.every and state.iteration % recipe.evaluation.every == 0):
            row |= await evaluate(run, state.iteration, final=is_last)
        _log_row(run, row | await run.sampler.measure())
        save_training(folder, recipe, state, setup.learner, setup.critic, setup.heads)
    return finish(run, state, collapse_reason(run.log.rows, recipe.learn) or FINISHED)


async def learn(run: TrainingRun, state: TrainingState, rollouts: Rollouts) -> IterationResult:
    """Learn from the scored rollouts while nothing is sampled, then store their credit; metrics include the seconds.

    Raises ConfigError if no rollout has a step.
    """
    _check_steps(run, state, rollouts)
    started = time.perf_counter()
    replay = _make_replay(run, state)
    records, recalled = recall_episodes(run, state, rollouts.scored)
    if rollouts.forks is not None:
        records = rollouts.with_branches
    version = run.sampler.version  # an iteration that was lost before this one has not changed it
    result = await run.sampler.update(
        str(state.iteration + 1),
        lambda: train_on_batch(
            run.setup, records, rollouts.tasks, state.trackers, replay, version=version, forks=rollouts.forks
        ),
    )
    if result.credit is not None:
        _store_credit(run, result.credit, {record.id for record in rollouts.scored})
        _warn_without_tags(run, result.credit)
    seconds = time.perf_counter() - started
    clock = {
        "seconds": rollouts.seconds + seconds,
        "seconds/rollout": rollouts.seconds,
        "seconds/credit": result.credit_s,
        "seconds/update": seconds - result.credit_s,
    }
    return replace(result, metrics={**result.metrics, **recalled, **clock})


def _warn_without_tags(run: TrainingRun, credit: Credit) -> None:
    """Log a warning after the first iteration with credit if the preset reads tags of subgoals and there are none."""
    is_first = not any("advantage/size" in row for row in run.log.rows)
    if is_first and lacks_tags(credit.shaped):
        log.warning(
            "training '%s': no action has the tags <switch> or <subgoal>, so preset '%s' takes each episode for one"
            " segment and credits actions alone: the agent's prompt has to ask for these tags",
            run.inputs.recipe.name,
            run.inputs.recipe.preset_name,
        )


def skip(run: TrainingRun, state: TrainingState, rollouts: Rollouts) -> IterationResult:
    """The result of an iteration whose episodes were all lost.

    Raises EnvInfraError after `MAX_LOST_ITERATIONS` such iterations in a row.
    """
    if consecutive_lost(run.log.rows) + 1 >= MAX_LOST_ITERATIONS:
        why = rollouts.records[-1].reason
        raise EnvInfraError(f"training: every episode of {MAX_LOST_ITERATIONS} iterations was lost; the last: {why}")
    return IterationResult(metrics={"skipped": "every episode was lost to infrastructure"}, trackers=state.trackers)


async def evaluate(run: TrainingRun, iteration: int, *, final: bool) -> dict[str, Json]:
    """Metrics on held-out tasks after that iteration; the success by task goes into a file of its own.

    `final`: with the splits and tasks of the first and the last evaluation.
    """
    started = time.perf_counter()
    found = await evaluate_heldout(run.episodes, run.trainable, run.sampler.policy, final=final)
    results = [
        HeldoutResult(iteration=iteration, split=split, success=success) for split, success in found.success.items()
    ]
    record_heldout(run.inputs.folder, results)
    return {**found.metrics, "seconds/evaluation": time.perf_counter() - started}


def finish(run: TrainingRun, state: TrainingState, reason: str) -> Ending:
    """Write the trained model, and why the run ended."""
    save_final_model(run.inputs.recipe, run.inputs.folder, run.trainable, run.setup.learner)
    record_end(run.inputs.folder, reason)
    return Ending(iterations=state.iteration, reason=reason)


def _check_steps(run: TrainingRun, state: TrainingState, rollouts: Rollouts) -> None:
    scored = rollouts.scored
    if not any(record.steps for record in scored):
        raise ConfigError(
            f"training: no episode of iteration {state.iteration + 1} has a step; the last ended with"
            f" {scored[-1].outcome.value}: {scored[-1].reason or 'no reason given'}; is model.context"
            f" ({run.trainable.context} tokens) too small for the prompts?"
        )


def _make_replay(run: TrainingRun, state: TrainingState) -> DemonstrationReplay | None:
    """The iteration's replay of demonstrations. The draw is a function of the recipe's seed and the iteration."""
    if not run.replay_examples:
        return None
    recipe = run.inputs.recipe
    draw = np.random.default_rng([recipe.seed, state.iteration])
    return DemonstrationReplay(examples=run.replay_examples, size=recipe.learn.demonstrations, draw=draw)


def _store_credit(run: TrainingRun, credit: Credit, played: Collection[str]) -> None:
    """Store the credit of the episodes with these ids; episodes that were learnt again keep the one they had."""
    recipe = run.inputs.recipe
    options = {key: value for key, value in recipe.credit.items() if key != "preset"}
    name = short_name(recipe.preset_name)
    credits = step_credits(credit, run.setup.preset, name=name, options=options)
    run.episodes.store.add_credits(each for each in credits if each.trajectory in played)


def _log_row(run: TrainingRun, row: Mapping[str, Json]) -> None:
    """Log a row of metrics and pass it to the callback.

    The log of a deterministic run leaves out seconds, so that it is the same every time; the callback gets all.
    """
    deterministic = run.inputs.recipe.deterministic
    run.log.add({key: value for key, value in row.items() if not (deterministic and "seconds" in key)})
    run.inputs.on_row(row)


@contextmanager
def _deterministic_torch(recipe: Recipe) -> Iterator[None]:
    """Seed torch, and use its deterministic algorithms if the recipe asks for them."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or recipe.deterministic)
    torch.manual_seed(recipe.seed)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
