"""Replay of a recorded asynchronous run from its log: the same episodes in the same order, so the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore
from gymcp.trainers.recipe.paths import place_recorded, with_absolute_paths
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.asynchronous.producer import make_logged_rollouts
from gymcp.trainers.run.asynchronous.update_log import LoggedUpdate, read_updates
from gymcp.trainers.run.checkpoints import TrainingState, check_settings, recipe_as_json
from gymcp.trainers.run.experience.collection import Rollouts
from gymcp.trainers.run.run_state import read_recipe_and_curriculum, read_settings, read_state
from gymcp.trainers.run.training_run import TrainingRun
from gymcp.types import Json, Trajectory


class ReplayedRollouts:
    """Gives the batches of a recorded run; nothing is played. Made by `open_replay`."""

    def __init__(self, run: TrainingRun, recorded: TrajectoryStore, lines: Mapping[int, LoggedUpdate]) -> None:
        self._run, self._recorded, self._lines = run, recorded, lines
        self._copied = {row.id for row in run.episodes.store.summaries(latest=False)}

    async def collect(self, state: TrainingState) -> Rollouts:
        """The episodes that the recorded run learnt from in this iteration; they are copied into this run's store."""
        line = self._lines[state.iteration + 1]
        records = [self._recorded.load(each) for each in line.episodes]
        rollouts = make_logged_rollouts(self._run, line, records)
        for record in records:
            if record.id not in self._copied:
                tags = rollouts.tasks[record.task].tags
                self._run.episodes.store.append(record, self._load_states(record), tags=tags)
        return rollouts

    def refill(self, state: TrainingState) -> TrainingState:
        return state

    def _load_states(self, record: Trajectory) -> dict[str, Json]:
        refs = {step.state_ref for step in record.steps} | {record.final_state}
        return {ref: self._recorded.state(ref) for ref in refs if ref}


def check_replay(recorded: Path, recipe: Recipe) -> None:
    """Raise ConfigError if the folder has no log of so many updates, or was trained with another recipe or preset."""
    lines = read_updates(recorded)
    if len(lines) < recipe.learn.iterations:
        raise ConfigError(
            f"training run {recorded}: its log has {len(lines)} updates, and learn.iterations is"
            f" {recipe.learn.iterations}; replay it with --set learn.iterations={len(lines)}"
        )
    before = _select_compared(place_recorded(read_recipe_and_curriculum(recorded)[0], recipe))
    now = _select_compared(with_absolute_paths(recipe))
    if differing := sorted(key for key in {*before, *now} if before.get(key) != now.get(key)):
        raise ConfigError(
            f"training run {recorded}: was trained by another recipe: {', '.join(differing)}; only name, evaluation and"
            " learn.iterations may differ in a replay"
        )
    check_settings(recorded, read_settings(read_state(recorded)), recipe)


@contextmanager
def open_replay(run: TrainingRun, recorded: Path) -> Iterator[ReplayedRollouts]:
    """The batches of a recorded run."""
    lines = {line.iteration: line for line in read_updates(recorded)}
    with TrajectoryStore.open(recorded) as store:
        yield ReplayedRollouts(run, store, lines)


def _select_compared(recipe: Recipe) -> dict[str, Json]:
    table = recipe_as_json(recipe)
    table["learn"] = {key: value for key, value in table["learn"].items() if key != "iterations"}
    table["rollout"] = {key: value for key, value in table["rollout"].items() if key != "concurrency"}
    return {key: value for key, value in table.items() if key not in ("name", "evaluation")}
