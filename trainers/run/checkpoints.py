"""What a training run needs to go on later, in files that a kill leaves whole."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from gymcp.atomic import write_atomically
from gymcp.errors import ConfigError
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.learner.critic import Critic
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.recipe.load import restore_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.run_state import STATE, read_state
from gymcp.types import Json

CHECKPOINT = "checkpoint"
_CRITIC = "critic.pt"
_REPLACED = (CHECKPOINT, "served", "model", "final", "tensorboard", "curves.png")
"""In the run's folder: what training makes anew, and removes the older parts of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The last whole iteration."""

    iteration: int
    trackers: Trackers
    recipe: Json


def save_training(
    folder: Path, recipe: Recipe, iteration: int, learner: Learner, critic: Critic | None, trackers: Trackers
) -> None:
    """A checkpoint, then the file that names it, then the one before it goes."""
    here = folder / CHECKPOINT / str(iteration)
    learner.save(here)
    if critic is not None:
        content = io.BytesIO()
        torch.save(critic.state(), content)
        write_atomically(here / _CRITIC, content.getvalue())
    state = {"iteration": iteration, "trackers": asdict(trackers), "recipe": plain(recipe)}
    write_atomically(folder / STATE, json.dumps(state).encode())
    for other in (folder / CHECKPOINT).iterdir():
        if other != here:
            shutil.rmtree(other)


def note_end(folder: Path, reason: str) -> None:
    """Writes down how the run ended, until it goes on."""
    write_atomically(folder / STATE, json.dumps({**read_state(folder), "ended": reason}).encode())


def load_training(folder: Path, saved: Saved, learner: Learner, critic: Critic | None) -> None:
    """Raises ConfigError for a checkpoint of another model, or one that is not there."""
    here = folder / CHECKPOINT / str(saved.iteration)
    learner.load(here)
    if critic is not None:
        critic.load(torch.load(here / _CRITIC, map_location="cpu", weights_only=True))


def saved_training(folder: Path, recipe: Recipe, *, resume: bool) -> Saved | None:
    """What the folder holds; None: nothing yet. Raises ConfigError where it may not be continued."""
    for name in _REPLACED:
        if (folder / name).is_symlink():
            raise ConfigError(
                f"training run {folder}: {name} is a link: what lies behind it would be removed; name another folder"
            )
    if not (folder / STATE).exists():
        return None
    state = read_state(folder)
    if not resume:
        raise ConfigError(f"training run {folder}: holds a run; continue it with --resume, or name another")
    before = restore_recipe(state["recipe"])  # keys that are newer than the run have their defaults
    if plain(_lengthened(before, recipe)) != plain(recipe):
        raise ConfigError(
            f"training run {folder}: was started with another recipe: {', '.join(_differing(plain(before), recipe))};"
            " only learn.iterations may grow, where learn.schedule is 'constant'"
        )
    return Saved(iteration=int(state["iteration"]), trackers=Trackers(**state["trackers"]), recipe=state["recipe"])


def _lengthened(before: Recipe, recipe: Recipe) -> Recipe:
    """With more iterations, where these are wanted and change nothing about the ones before."""
    more = recipe.learn.iterations > before.learn.iterations and before.learn.schedule == "constant"
    iterations = recipe.learn.iterations if more else before.learn.iterations
    return replace(before, learn=replace(before.learn, iterations=iterations))


def _differing(before: Mapping[str, Json], recipe: Recipe) -> list[str]:
    """The sections that are not the same."""
    now = plain(recipe)
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))


def plain(recipe: Recipe) -> dict[str, Json]:
    """As JSON has it."""
    found: dict[str, Json] = json.loads(json.dumps(asdict(recipe)))
    return found
