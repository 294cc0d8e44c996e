"""One training run of a benchmark, on disk: started, resumed after a kill, or only read if it has ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gymcp.atomic import write_atomically
from gymcp.envs import catalog
from gymcp.envs.anchors import StateAnchor
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.errors import ConfigError
from gymcp.mcp_servers.digest import digest
from gymcp.store.metric_rows import METRICS_FILE
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.checkpoints import find_saved_state, recipe_as_json
from gymcp.trainers.run.loop import Ending, train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.trainers.run.model_files import FINAL
from gymcp.trainers.run.run_state import FINISHED
from gymcp.types import Json

ENDED = "ended.json"
Tell = Callable[[str, Mapping[str, Json]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    name: str
    """Name of the run's folder."""
    recipe: Recipe
    anchor: StateAnchor | None = None
    """Anchor of the run, or None for the environment's own."""


@cache
def environment(name: str) -> LoadedEnv:
    """The environment of that name, loaded once: its suite may take a while to make."""
    return load_env(catalog.load_spec(name))


def run_training(run: Run, folder: Path, tell: Tell, on_start: Callable[[], None] = lambda: None) -> Ending:
    """The end of the run; runs it to that end first, if it has not ended with as many iterations.

    `on_start` is called once nothing refuses the run. Raises ConfigError if the folder holds a run of another recipe.
    """
    here = folder / run.name
    ending = read_ending(here)
    _check_recipe(here, run.recipe, ending)
    if ending is None or (ending.reason == FINISHED and ending.iterations < run.recipe.learn.iterations):
        env = environment(run.recipe.env)
        ending = train(
            run.recipe,
            env if run.anchor is None else replace(env, spec=replace(env.spec, anchor=run.anchor)),
            here,
            resume=(here / "training.json").is_file(),
            on_row=lambda row: tell(run.name, row),
            on_start=lambda concurrency: on_start(),
        )
        note = {"iterations": ending.iterations, "reason": ending.reason}
        write_atomically(here / ENDED, json.dumps(note).encode())
    return ending


def _check_recipe(here: Path, recipe: Recipe, ending: Ending | None) -> None:
    """Raise ConfigError if the folder holds a run of another recipe; one that has ended may have more iterations."""
    iterations = max(recipe.learn.iterations, ending.iterations if ending is not None else 0)
    try:
        find_saved_state(here, replace(recipe, learn=replace(recipe.learn, iterations=iterations)), resume=True)
    except ConfigError as error:
        raise ConfigError(f"{error}; move this folder away, or name another with --out") from error


def read_ending(here: Path) -> Ending | None:
    """The end of the run in this folder; None if it has not ended."""
    path = here / ENDED
    if not path.is_file():
        return None
    note = json.loads(path.read_text(encoding="utf-8"))
    return Ending(iterations=note["iterations"], reason=note["reason"])


def read_rows(here: Path) -> list[dict[str, Json]]:
    """The rows of metrics of a run's iterations so far."""
    return read_metrics(here) if (here / METRICS_FILE).is_file() else []


def run_warm_start(recipe: Recipe, folder: Path, tell: Tell, on_start: Callable[[], None] = lambda: None) -> Path:
    """The model after the recipe's warm start, which runs once per seed: all arms share its weights."""
    warm = replace(
        recipe,
        learn=replace(recipe.learn, iterations=0),
        evaluation=replace(recipe.evaluation, tasks=1, final_tasks=1),  # each arm measures the start by itself
    )
    name = f"warm-{recipe.seed}-{digest(recipe_as_json(warm))[:8]}"  # another recipe makes another model
    run_training(Run(name=name, recipe=warm), folder, tell, on_start)
    return (folder / name / FINAL).resolve()


def start_from(model: Path, recipe: Recipe) -> Recipe:
    """The recipe of a training that begins with this model instead of a warm start."""
    needs_demonstrations = recipe.learn.demonstrations > 0  # training goes on with them beside its own rollouts
    return replace(
        recipe,
        model=replace(recipe.model, path=str(model)),
        warm_start=replace(recipe.warm_start, epochs=0)
        if needs_demonstrations
        else replace(recipe.warm_start, tasks=0, agent=""),
    )
