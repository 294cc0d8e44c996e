"""A replay buffer from the episodes of another training run: refused unless they can be learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gymcp.agents.policies.local_model import load_tokenizer
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore, open_run
from gymcp.store.run_folder import TRAINING_FILE
from gymcp.trainers.learner.token_rows import has_logprobs, rows_of
from gymcp.trainers.recipe.model_path import named_model_folder
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import reserved_tasks
from gymcp.trainers.run.model_files import model_folder
from gymcp.trainers.run.run_state import read_recipe_and_curriculum
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Sampled, Trajectory


def check_replay(env: LoadedEnv, recipe: Recipe, loss: Loss) -> None:
    """Raise ConfigError if the recipe's replay keeps nothing, or names a run that cannot be learnt from."""
    rule, who = recipe.replay, f"recipe '{recipe.name}'"
    if not rule.keep:
        if rule.run:
            raise ConfigError(
                f"{who}: replay.run is '{rule.run}', and replay.keep is 0: set it to the episodes of a task"
            )
        return
    if not rule.run:
        if env.spec.more_tasks is not None and not recipe.tasks.pool:
            raise ConfigError(
                f"{who}: replay.keep is {rule.keep}, and every task is new, so no task comes again whose episodes could"
                " be recalled: set tasks.pool to the number of tasks that are repeated"
            )
        return
    if not loss.takes_other_weights:
        raise ConfigError(
            f"{who}: replay.run '{rule.run}' holds episodes of other weights, and loss.kind = '{loss.kind}' compares"
            " with the weights that the update began with; set loss.decoupled = true, or take a preset without ratios"
            " (opmd, asymre, expert_iteration)"
        )
    _check_origin(env, recipe)
    records = load_recorded_buffer(env, recipe)
    if loss.kind != "likelihood" and (drawn := _find_unknown(records)):
        raise ConfigError(
            f"{who}: replay.run '{rule.run}': episode {drawn} has no recorded log-probabilities, which loss.decoupled"
            " needs; take a preset without ratios (opmd, asymre, expert_iteration)"
        )


def load_recorded_buffer(env: LoadedEnv, recipe: Recipe) -> list[Trajectory]:
    """The scored episodes of ``replay.run`` in the order of recording, without those of tasks that are for tests alone.

    The versions of their tokens name the run, so that they are not taken for this run's weights. Raises ConfigError if
    none has tokens, StoreError if there is no run.
    """
    reserved = reserved_tasks(env, recipe)
    run = Path(recipe.replay.run)
    with TrajectoryStore.open(run) as store:
        rows = [row for row in store.summaries() if row.latest and row.outcome.has_score and row.steps]
        rows.sort(key=lambda row: row.seq)
        records = [store.load(row.id, graded=True) for row in rows if row.task not in reserved]
    usable = [record for record in records if any(step.sampled is not None for step in record.steps)]
    if not usable:
        raise ConfigError(
            f"recipe '{recipe.name}': replay.run '{run}' has nothing to learn from: of {len(rows)} scored episodes"
            f" {len(records)} are of tasks that are not for tests alone, and none of these has recorded tokens"
        )
    return [mark_foreign(record, run.name) for record in usable]


def mark_foreign(record: Trajectory, run: str) -> Trajectory:
    """The record with the run's name before the version of the weights that drew each token."""

    def mark(sampled: Sampled | None) -> Sampled | None:
        if sampled is None:
            return None
        versions = tuple((f"{run}/{version}", start, end) for version, start, end in sampled.versions)
        return replace(sampled, versions=versions)

    return replace(
        record,
        steps=tuple(replace(step, sampled=mark(step.sampled)) for step in record.steps),
        side_answers=tuple(replace(answer, sampled=mark(answer.sampled)) for answer in record.side_answers),
    )


def _check_origin(env: LoadedEnv, recipe: Recipe) -> None:
    """Raise ConfigError if the run is of another environment or its tokens are of another vocabulary."""
    who, run = f"recipe '{recipe.name}': replay.run '{recipe.replay.run}'", Path(recipe.replay.run)
    config = open_run(run).config
    recorded, here = (config.get("env"), config.get("env_version")), (env.spec.name, env.spec.version)
    if recorded != here:
        raise ConfigError(
            f"{who} is of environment '{recorded[0]}' (version {recorded[1]}), and the recipe trains on '{here[0]}'"
            f" (version {here[1]}): the same actions may do something else there; record a run of this one"
        )
    if not (run / TRAINING_FILE).is_file():
        raise ConfigError(f"{who} is no training run, so the vocabulary of its tokens is unknown; name one that is")
    if not recipe.model.path:
        raise ConfigError(
            f"{who} has tokens of its own model's vocabulary, and this recipe makes a new model: set model.path, such"
            f" as to '{run / 'final'}'"
        )
    other = model_folder(read_recipe_and_curriculum(run)[0], run)
    if _read_vocabulary(other) != _read_vocabulary(named_model_folder(recipe.model)):
        raise ConfigError(
            f"{who} has tokens of the vocabulary of '{other}', and model.path, '{recipe.model.path}', has another one:"
            " the same numbers are other words there"
        )


def _read_vocabulary(model: Path) -> dict[str, int]:
    """Token -> number. Raises ConfigError for a folder without a tokenizer."""
    tokenizer, _ = load_tokenizer(model, f"model '{model}'")
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary


def _find_unknown(records: Sequence[Trajectory]) -> str:
    """Id of the first episode with a row without log-probabilities; empty if there is none."""
    return next((record.id for record in records if not all(map(has_logprobs, rows_of(record)))), "")
