"""The disk of a training run before it starts: what it writes at the least, and what is free."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore
from gymcp.trainers.credit.presets import Preset
from gymcp.trainers.recipe.model import uses_bfloat16
from gymcp.trainers.recipe.model_path import named_model_folder
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.forecasts.size import ModelShape, read_shape
from gymcp.types import Trajectory

LEAST_EPISODE_BYTES = 300
"""Bytes that no record of an episode falls below in the store: one without a step takes 400 to 500."""
_WEIGHT_BYTES = 4
"""Bytes of a trained weight in a checkpoint, and of each of the two moments of Adam, which the first one lacks."""
_COPIES = 32
"""Copies of a record that are stored to find out what one takes."""
GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskForecast:
    """Bytes of a run's folder."""

    weights: int
    """Two checkpoints, which lie side by side when one replaces the other; or the last one and the trained model."""
    episodes: int
    """Number of rollouts, which are recorded; no demonstration or held-out episode is."""
    free: int
    """Bytes that are free for the run; what its folder holds already counts as free."""
    place: Path
    """Folder whose disk it is."""

    def count_bytes(self, episode: int = LEAST_EPISODE_BYTES) -> int:
        """Bytes of the whole folder, with so many for each episode."""
        return self.weights + self.episodes * episode

    @property
    def is_too_small(self) -> bool:
        """True if not even the least fits."""
        return self.count_bytes() > self.free

    def describe(self, episode: int = LEAST_EPISODE_BYTES) -> str:
        """The needs in words, beside what is free."""
        return (
            f"{_in_gb(self.count_bytes(episode))} ({_in_gb(self.weights)} for checkpoints and model, {self.episodes:,}"
            f" episodes of {episode:,} bytes) of {_in_gb(self.free)} that are free at {self.place}"
        )


def check_disk(recipe: Recipe, preset: Preset, folder: Path) -> None:
    """Raise ConfigError if the disk cannot hold what a run of this recipe writes into `folder` at the least."""
    shape = read_shape(recipe, named_model_folder(recipe.model)) if recipe.model.path else None
    disk = forecast_disk(recipe, preset, shape, folder)
    is_counted = shutil.disk_usage(disk.place).total > 0  # not on a file system without files of its own, such as /proc
    if disk.is_too_small and is_counted:
        raise ConfigError(
            f"training run {folder}: its disk is too small: the run writes at least {disk.describe()};"
            " free some, name a folder on another disk with --out, lower learn.iterations, rollout.groups or"
            " rollout.episodes, or set model.lora_rank"
        )


def forecast_disk(recipe: Recipe, preset: Preset, shape: ModelShape | None, folder: Path) -> DiskForecast:
    """The disk that a run of this recipe needs, at the least. `shape`: None for a tiny model, which counts as nothing.

    Not in it: branches, refilled batches, states, credit, weights that are handed to vLLM.
    """
    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    return DiskForecast(
        weights=0 if shape is None else _count_weights(recipe, preset, shape),
        episodes=_count_rollouts(recipe),
        free=shutil.disk_usage(place).free + _size_of(folder),
        place=place,
    )


def _count_rollouts(recipe: Recipe) -> int:
    """Rollouts of a run that no reason ends early; with replay or a controller, one of each group is certain."""
    rollout = recipe.rollout
    certain = 1 if recipe.replay.keep or rollout.controller else rollout.episodes
    return recipe.learn.iterations * rollout.groups * certain


def _count_weights(recipe: Recipe, preset: Preset, shape: ModelShape) -> int:
    """Bytes of checkpoints and trained model at the moment when they take most."""
    has_reference = bool(preset.loss.kl or preset.preference is not None or recipe.learn.restart)
    first = _WEIGHT_BYTES * shape.trained * (1 + has_reference)
    later = first + 2 * _WEIGHT_BYTES * shape.trained
    model = shape.parameters * (2 if uses_bfloat16(recipe.model, on_gpu=True) else 4)
    return max(later + (later if recipe.learn.iterations > 1 else first), later + model)


def measure_record(record: Trajectory) -> int:
    """Bytes that the store takes for an episode like this one, without its states."""
    with tempfile.TemporaryDirectory(prefix="gymcp-record-") as scratch:
        folder = Path(scratch)
        with TrajectoryStore.open(folder, write=True) as store:
            store.append(replace(record, id="0"), {})
        before = _size_of(folder)
        with TrajectoryStore.open(folder, write=True) as store:
            for number in range(1, _COPIES + 1):
                store.append(replace(record, id=str(number), trial=number), {})
        return (_size_of(folder) - before) // _COPIES


def _size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _in_gb(size: int) -> str:
    return f"{size / GB:,.0f} GB" if size >= 10 * GB else f"{size / GB:.2g} GB"
