"""The record of a training run's start, in ``run.json`` as other runs have it: date, versions, revision, recipe."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from gymcp.envs.audit.fingerprint import env_digest, suite_digest
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.training_conditions import DIGESTS_KEY
from gymcp.store import open_run
from gymcp.store.run_folder import RUN_FILE, append_start, record_start
from gymcp.trainers.recipe.agent import RolloutAgent
from gymcp.trainers.recipe.environment import digest_grader, select_wrappers
from gymcp.trainers.recipe.load import restore_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import heldout_tasks
from gymcp.trainers.run.checkpoints import recipe_as_json
from gymcp.trainers.run.run_state import read_state
from gymcp.types import Json
from gymcp.user_code import UserObject

log = logging.getLogger(__name__)

_RECIPE, _AGENT_DIGEST, _PRESET_DIGEST, _GRADER_DIGEST = "recipe", "agent_digest", "preset_digest", "grader_digest"
_SUITE_DIGEST = "suite_digest"
_LIBRARIES = ("torch", "transformers", "numpy", "gymnasium", "mcp")


def record_training_start(
    folder: Path, recipe: Recipe, env: LoadedEnv, agent: RolloutAgent | None, preset: UserObject | None
) -> None:
    """Write the record of a new training run. Raises ConfigError if the folder holds a run of another kind.

    `agent` and `preset`: the user's, if there are any.

    The record has no ``source``, and its digests are in a table of their own, because practice tasks need not be tasks
    of the suite: so no verb takes them for those of an evaluation.
    """
    _refuse_other_run(folder)
    config = {
        "env": env.spec.name,
        "env_version": env.spec.version,
        "suite": env.suite.name,
        "suite_version": env.suite.version,
        DIGESTS_KEY: {"env_digest": env_digest(env), _SUITE_DIGEST: suite_digest(env.suite)},
        "agent": f"training '{recipe.name}'",
        **(agent.config() if agent is not None else {}),
        **({"preset_source": preset.source, _PRESET_DIGEST: preset.digest} if preset is not None else {}),
        **select_wrappers(recipe).to_config(),
        **({"judge": recipe.reward.judge} if recipe.reward.judge else {}),
        **({_GRADER_DIGEST: digest} if (digest := digest_grader(recipe)) else {}),
        _RECIPE: recipe_as_json(recipe),
    }
    try:
        record_start(folder, config, seeds=[recipe.seed], versions={name: version(name) for name in _LIBRARIES})
    except StoreError as error:
        raise ConfigError(str(error)) from error


def append_training_start(folder: Path, start: Mapping[str, Json]) -> None:
    """Add a start or resumption to the record of the run; a run of an older gymcp may have no record."""
    if not (folder / RUN_FILE).exists():
        return
    try:
        append_start(open_run(folder), start)
    except StoreError as error:
        log.warning("%s; so it does not say with what the training goes on", error)


def check_code_unchanged(folder: Path, recipe: Recipe, agent: RolloutAgent | None, preset: UserObject | None) -> None:
    """Raise ConfigError if the user's agent, preset or grader is not the one with which the run was started."""
    used = [("agent", _AGENT_DIGEST, agent), ("preset", _PRESET_DIGEST, preset)]
    for kind, key, code in used:
        if code is not None and _read_config(folder).get(key) != code.digest:
            raise _make_error(folder, f"{kind} '{code.name}'")
    digest = digest_grader(recipe)
    if digest and _read_config(folder).get(_GRADER_DIGEST, digest) != digest:  # older runs have none
        raise _make_error(folder, f"grader '{recipe.reward.grader}'")


def check_tasks_unchanged(folder: Path, recipe: Recipe, env: LoadedEnv) -> None:
    """Raise ConfigError if the suite or the held-out tasks are not those with which the run was started.

    Older runs recorded no suite, and chose their held-out tasks by the seed of the run.
    """
    chosen = restore_recipe(read_state(folder)["recipe"]).evaluation.seed
    before = replace(recipe, evaluation=replace(recipe.evaluation, seed=chosen))
    if before != recipe and _list_heldout(before, env) != _list_heldout(recipe, env):
        raise ConfigError(
            f"training run {folder}: its held-out tasks were chosen by seed {chosen}, and by evaluation.seed"
            f" {recipe.evaluation.seed} they would be others; put evaluation.seed = {chosen} into the recipe, or train"
            " in another folder"
        )
    try:
        digests = open_run(folder).config.get(DIGESTS_KEY)
    except StoreError:  # `append_training_start` says so
        return
    began = digests.get(_SUITE_DIGEST) if isinstance(digests, Mapping) else None
    if began not in (None, suite_digest(env.suite)):
        raise ConfigError(
            f"training run {folder}: the tasks of '{env.spec.name}' have changed since the run began; put them back as"
            " they were, or train in another folder"
        )


def _list_heldout(recipe: Recipe, env: LoadedEnv) -> list[set[str]]:
    """Ids of the held-out tasks: of each split of an evaluation, then of each split at the ends of the run."""
    rule = recipe.evaluation
    places = [(split, rule.tasks) for split in rule.splits]
    places += [(split, rule.final_tasks or rule.tasks) for split in rule.final_splits or rule.splits]
    return [{task.id for task in heldout_tasks(env, recipe, split, most)} for split, most in places]


def _make_error(folder: Path, code: str) -> ConfigError:
    return ConfigError(
        f"training run {folder}: the file of {code} has changed since the run began; put it back as it was, or train in"
        " another folder"
    )


def _read_config(folder: Path) -> Mapping[str, Json]:
    try:
        return open_run(folder).config
    except StoreError as error:
        raise ConfigError(f"training run {folder}: {error}") from error


def _refuse_other_run(folder: Path) -> None:
    """A record of a training that ended before its first checkpoint may be replaced; any other may not."""
    if not (folder / RUN_FILE).exists():
        return
    try:
        config = open_run(folder).config
    except StoreError as error:
        raise ConfigError(f"training run {folder}: {error}; name another folder") from error
    if _RECIPE not in config:
        raise ConfigError(f"training run {folder}: holds a run that is no training; name another folder")
