"""Checkpoints of a training run: all that it needs to go on later, in files that a kill leaves whole."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from gymcp.atomic import write_atomically
from gymcp.errors import ConfigError
from gymcp.store.run_folder import RUN_FILE, TRAINING_FILE
from gymcp.trainers.credit.preset_functions import short_name
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.learner.critic import Critic
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.load import restore_recipe
from gymcp.trainers.recipe.paths import place_recorded, with_absolute_paths
from gymcp.trainers.recipe.preset_settings import describe_changes, list_settings
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curricula.protocol import CurriculumState
from gymcp.trainers.run.experience.replay_buffer import ReplayBuffer, restore_buffer
from gymcp.trainers.run.run_state import read_curriculum, read_settings, read_state
from gymcp.types import Json

CHECKPOINT = "checkpoint"
_REPLACED = (CHECKPOINT, "served", "model", "final", "tensorboard", "curves.png")
"""Files and folders of the run that training writes anew, removing their older content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Progress of a training run, beside its weights."""

    iteration: int = 0
    """Number of complete iterations."""
    trackers: Trackers = field(default_factory=Trackers)
    curriculum: CurriculumState = field(default_factory=CurriculumState)
    replay: ReplayBuffer = field(default_factory=ReplayBuffer)
    pending: tuple[Mapping[str, Json], ...] = ()
    """Groups under way, with ``rollout.staleness`` (`asynchronous.pending_groups`)."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """Settings of preset and loss that the run began with (`preset_settings.list_settings`); empty: not recorded."""


def save_training(
    folder: Path,
    recipe: Recipe,
    state: TrainingState,
    learner: Learner,
    critic: Critic | None,
    heads: Mapping[str, Critic] | None = None,
) -> None:
    """Write a checkpoint, then the state file that names it; then remove older checkpoints."""
    here = folder / CHECKPOINT / str(state.iteration)
    learner.save(here)
    for name, head in _list_heads(critic, heads).items():
        content = io.BytesIO()
        torch.save(head.state(), content)
        write_atomically(here / f"{name}.pt", content.getvalue())
    record = {
        "iteration": state.iteration,
        "trackers": asdict(state.trackers),
        "curriculum": state.curriculum.to_json(),
        "replay": state.replay.to_json(),
        **({"pending": state.pending} if state.pending else {}),
        **({"settings": dict(state.settings)} if state.settings else {}),
        "recipe": recipe_as_json(recipe),
    }
    write_atomically(folder / TRAINING_FILE, json.dumps(record).encode())
    for other in (folder / CHECKPOINT).iterdir():
        if other != here:
            shutil.rmtree(other)


def record_end(folder: Path, reason: str) -> None:
    """Write into the state file how the run ended. The next `save_training` removes it."""
    write_atomically(folder / TRAINING_FILE, json.dumps({**read_state(folder), "ended": reason}).encode())


def load_training(
    folder: Path,
    state: TrainingState,
    learner: Learner,
    critic: Critic | None,
    heads: Mapping[str, Critic] | None = None,
) -> None:
    """Load the checkpoint of a state. Raises ConfigError if it is of another model or missing."""
    here = folder / CHECKPOINT / str(state.iteration)
    learner.load(here)
    for name, head in _list_heads(critic, heads).items():
        head.load(torch.load(here / f"{name}.pt", map_location="cpu", weights_only=True))


def _list_heads(critic: Critic | None, heads: Mapping[str, Critic] | None) -> dict[str, Critic]:
    """All heads by the names of their files."""
    return {**({} if critic is None else {"critic": critic}), **(heads or {})}


def find_saved_state(folder: Path, recipe: Recipe, *, resume: bool) -> TrainingState | None:
    """The state that the folder's last checkpoint was saved with; None: the folder holds no run yet.

    Raises ConfigError if the run may not be continued: without `resume`, if its recipe is another one or of an older
    version, if its preset now has other defaults, or if a part of the folder is a link.
    """
    for path in _walk_replaced(folder, recipe):
        if path.is_symlink():
            raise ConfigError(
                f"training run {folder}: {path.relative_to(folder)} is a link: what lies behind it would be overwritten"
                " or removed; name another folder"
            )
    if not (folder / TRAINING_FILE).exists():
        _refuse_other_files(folder, recipe)
        return None
    state = read_state(folder)
    if not resume:
        raise ConfigError(f"training run {folder}: holds a run; continue it with --resume, or name another")
    try:
        # keys that are newer than the run have their defaults
        before = place_recorded(restore_recipe(state["recipe"]), recipe)
        if "seed" not in state["recipe"].get("evaluation", {}):  # `check_tasks_unchanged` compares the chosen tasks
            before = replace(before, evaluation=replace(before.evaluation, seed=recipe.evaluation.seed))
    except ConfigError as error:
        raise ConfigError(
            f"training run {folder}: its recipe is not one of this version of gymcp ({error}); continue the run with"
            " the version that started it, or start it again in another folder"
        ) from error
    settings = read_settings(state)
    named = recipe
    recipe = _remove_recorded(with_absolute_paths(recipe), before, settings)
    if recipe_as_json(_extend(before, recipe)) != recipe_as_json(recipe):
        differing = ", ".join(_differing_sections(recipe_as_json(_extend(before, recipe)), recipe_as_json(recipe)))
        raise ConfigError(
            f"training run {folder}: was started with another recipe: {differing};"
            " only learn.iterations may grow, where learn.schedule is 'constant', and rollout.concurrency may differ"
        )
    check_settings(folder, settings, named)
    return TrainingState(
        iteration=int(state["iteration"]),
        trackers=Trackers(**state["trackers"]),
        curriculum=read_curriculum(state, before),
        replay=restore_buffer(state.get("replay", {})),
        pending=tuple(state.get("pending", ())),
        settings=settings,
    )


def _list_replaced(recipe: Recipe) -> list[str]:
    return [name for name in _REPLACED if name != "model" or not recipe.model.path]


def _walk_replaced(folder: Path, recipe: Recipe) -> Iterator[Path]:
    """Files and folders that training would write anew, with everything in them; behind a link, nothing."""
    for top in (folder / name for name in _list_replaced(recipe)):
        yield top
        if not top.is_symlink():
            for parent, folders, files in os.walk(top):
                yield from (Path(parent, name) for name in (*folders, *files))


def check_settings(folder: Path, settings: Mapping[str, Json], recipe: Recipe) -> None:
    """Raise ConfigError if this version gives the recipe's preset or loss other settings than these of the run."""
    if changes := describe_changes(settings, list_settings(recipe, build_preset(recipe)) if settings else {}):
        raise ConfigError(
            f"training run {folder}: preset '{short_name(recipe.preset_name)}' has other defaults than when the run"
            f" began: {changes}; name the former ones in the recipe, or train in another folder"
        )


def _refuse_other_files(folder: Path, recipe: Recipe) -> None:
    """Raise ConfigError if a folder without a run has something that training would remove."""
    found = next((name for name in _list_replaced(recipe) if (folder / name).exists()), None)
    if found is not None and not (folder / RUN_FILE).exists():
        raise ConfigError(
            f"training run {folder}: has '{found}', which no training has made and this one would remove; name another"
            " folder with --out"
        )


def _extend(before: Recipe, recipe: Recipe) -> Recipe:
    """The older recipe with the iterations of the newer, if these are more and change nothing about the older ones.

    It also takes the newer one's number of episodes at a time, on which no result depends.
    """
    more = recipe.learn.iterations > before.learn.iterations and before.learn.schedule == "constant"
    iterations = recipe.learn.iterations if more else before.learn.iterations
    return replace(
        before,
        learn=replace(before.learn, iterations=iterations),
        rollout=replace(before.rollout, concurrency=recipe.rollout.concurrency),
    )


def _remove_recorded(recipe: Recipe, before: Recipe, settings: Mapping[str, Json]) -> Recipe:
    """The recipe without the settings that it names, the older one does not, and the run has had all the time."""

    def keep(section: str, old: Mapping[str, Json], new: Mapping[str, Json]) -> dict[str, Json]:
        recorded = {key for key in new.keys() - old.keys() if settings.get(f"{section}.{key}", ...) == new[key]}
        return {key: value for key, value in new.items() if key not in recorded}

    credit, loss = keep("credit", before.credit, recipe.credit), keep("loss", before.loss, recipe.loss)
    return replace(recipe, credit=credit, loss=loss)


def _differing_sections(before: Mapping[str, Json], now: Mapping[str, Json]) -> list[str]:
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))


def recipe_as_json(recipe: Recipe) -> dict[str, Json]:
    """The recipe as the state file holds it: sections as objects, tuples as lists."""
    table: dict[str, Json] = json.loads(json.dumps(asdict(recipe)))
    return table
