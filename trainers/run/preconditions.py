"""Checks of a training run before anything is written or started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from gymcp.agents.policies.local_model import read_context_length
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.store.run_folder import lock_run
from gymcp.trainers.credit.preset import Preset
from gymcp.trainers.credit.signals.registry import check_gold, needs_gold
from gymcp.trainers.learner.distributed_processes import Accelerated
from gymcp.trainers.recipe.agent import load_demonstrators
from gymcp.trainers.recipe.drafts import check_draft_model
from gymcp.trainers.recipe.environment import check_wrappers
from gymcp.trainers.recipe.model_path import named_model_folder
from gymcp.trainers.recipe.preset_check import try_own_preset
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.recipe.reward import check_compared_components, check_reward
from gymcp.trainers.rollouts.curricula.choose import make_curriculum
from gymcp.trainers.rollouts.curriculum import (
    demonstration_tasks,
    heldout_tasks,
    representative_tasks,
    training_tasks,
)
from gymcp.trainers.rollouts.recorded_demonstrations import load_shown_actions, select_demonstrations
from gymcp.trainers.run.experience.recorded_buffer import check_replay
from gymcp.trainers.run.forecasts.disk import check_disk


def check_run(
    recipe: Recipe, preset: Preset, env: LoadedEnv, processes: Accelerated | None, folder: Path | None = None
) -> None:
    """Raise ConfigError if the run would lack tasks, gold, a sandbox, a model or disk, or has an impossible engine.

    So it does if a preset of the user reads what no batch has (`try_own_preset`). `folder`: where rollouts are
    recorded; None: there are none.
    """
    try_own_preset(recipe, preset)
    if processes is not None and processes.is_sharded and recipe.rollout.engine == "embedded":
        raise ConfigError(
            f"recipe '{recipe.name}': the embedded engine needs whole weights, and FSDP spreads them over processes;"
            " set rollout.engine to 'vllm', or launch with DDP (accelerate launch --multi_gpu)"
        )
    check_reward(recipe, env.spec)
    check_compared_components(recipe, preset, env.spec)
    _check_tasks(recipe, env)
    check_replay(env, recipe, preset.loss)
    if needs_gold(preset):
        _check_gold(recipe, preset, env)
    get_sandbox(recipe.rollout.sandbox)
    check_wrappers(recipe, env)
    if recipe.model.path:
        read_context_length(named_model_folder(recipe.model), f"model '{recipe.model.path}'")
    check_draft_model(recipe)
    if folder is not None:
        check_disk(recipe, preset, folder)


@contextmanager
def create_run_folder(folder: Path) -> Iterator[None]:
    """Make the folder and hold its lock, so that others see the training run's end, also if it is killed.

    Raises ConfigError if the folder cannot be made, StoreError if another process works on the run.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_run(folder))
        except OSError as error:
            raise ConfigError(f"training run {folder}: cannot be made: {error.strerror}") from error
        yield


def _check_tasks(recipe: Recipe, env: LoadedEnv) -> None:
    """Ask for some tasks of every kind, because an unknown family, level, split, run or agent is an error then."""
    one = replace(recipe, warm_start=replace(recipe.warm_start, tasks=min(recipe.warm_start.tasks, 1)))
    training_tasks(env, recipe, 0)
    make_curriculum(env, recipe)
    load_shown_actions(env, recipe)
    if recipe.warm_start.run:
        select_demonstrations(env, one)
    else:
        demonstration_tasks(env, one)
        load_demonstrators(recipe)
    for split in {*recipe.evaluation.splits, *recipe.evaluation.final_splits}:
        heldout_tasks(env, recipe, split, 1)


def _check_gold(recipe: Recipe, preset: Preset, env: LoadedEnv) -> None:
    for task in representative_tasks(env, recipe):
        if not any(turn.calls or turn.final_text for turn in task.gold):
            raise ConfigError(
                f"recipe '{recipe.name}': preset '{recipe.preset_name}' compares with gold, and task '{task.id}' of"
                f" '{recipe.env}' has none; choose a preset that needs none"
            )
        check_gold(preset, task)
