"""One training run of a benchmark, on disk: started, resumed after a kill, or only read if it has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gymcp.atomic import write_atomically
from gymcp.envs import catalog
from gymcp.envs.anchors import StateAnchor
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.model_files import FINAL
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


def run_training(run: Run, folder: Path, tell: Tell) -> list[dict[str, Json]]:
    """The rows of metrics of the whole run; runs it to its end first, if it has not ended.

    Raises ConfigError if the folder holds a run of another recipe: a run's budget is fixed before it starts.
    """
    here = folder / run.name
    if not has_ended(here):
        env, started = environment(run.recipe.env), time.perf_counter()
        ending = train(
            run.recipe,
            env if run.anchor is None else replace(env, spec=replace(env.spec, anchor=run.anchor)),
            here,
            resume=(here / "training.json").is_file(),
            on_row=lambda row: tell(run.name, row),
        )
        note = {"iterations": ending.iterations, "reason": ending.reason, "seconds": time.perf_counter() - started}
        write_atomically(here / ENDED, json.dumps(note).encode())
    return read_rows(here)


def has_ended(here: Path) -> bool:
    """True if the run of this folder has ended."""
    return (here / ENDED).is_file()


def read_rows(here: Path) -> list[dict[str, Json]]:
    """The rows of metrics of a run's iterations so far."""
    path = here / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def run_warm_start(recipe: Recipe, folder: Path, tell: Tell) -> Recipe:
    """The recipe of the training after its warm start, which runs once per seed: all contenders share its weights."""
    name = f"warm-{recipe.seed}"
    warm = replace(recipe, learn=replace(recipe.learn, iterations=0), evaluation=replace(recipe.evaluation, tasks=1))
    run_training(Run(name=name, recipe=warm), folder, tell)
    needs_demonstrations = recipe.learn.demonstrations > 0  # training goes on with them beside its own rollouts
    return replace(
        recipe,
        model=replace(recipe.model, path=str((folder / name / FINAL).resolve())),
        warm_start=replace(recipe.warm_start, epochs=0)
        if needs_demonstrations
        else replace(recipe.warm_start, tasks=0, agent=""),
    )
