"""One training run of a benchmark, on disk: begun, gone on with after a kill, or read where it has ended."""

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
from gymcp.trainers.run.loop import FINAL, train
from gymcp.types import Json

ENDED = "ended.json"
Tell = Callable[[str, Mapping[str, Json]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    name: str
    """Of its folder."""
    recipe: Recipe
    anchor: StateAnchor | None = None
    """None: the environment's own."""


@cache
def environment(name: str) -> LoadedEnv:
    """Made once: its suite may take a while."""
    return load_env(catalog.load_spec(name))


def played(run: Run, folder: Path, tell: Tell) -> list[dict[str, Json]]:
    """The rows of metrics of the whole run, which is played to its end where it has not been yet.

    Raises ConfigError where the folder holds a run of another recipe: the budget was fixed before.
    """
    here = folder / run.name
    if not has_ended(here):
        env, started = environment(run.recipe.env), time.perf_counter()
        ending = train(
            run.recipe,
            env if run.anchor is None else replace(env, spec=replace(env.spec, anchor=run.anchor)),
            here,
            resume=(here / "training.json").is_file(),
            tell=lambda row: tell(run.name, row),
        )
        note = {"iterations": ending.iterations, "reason": ending.reason, "seconds": time.perf_counter() - started}
        write_atomically(here / ENDED, json.dumps(note).encode())
    return rows(here)


def has_ended(here: Path) -> bool:
    """True where nothing of a run's folder is left to do."""
    return (here / ENDED).is_file()


def rows(here: Path) -> list[dict[str, Json]]:
    """What a run's folder says of its iterations so far."""
    path = here / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def warmed_up(recipe: Recipe, folder: Path, tell: Tell) -> Recipe:
    """The recipe with its warm start behind it, which is run once per seed and kept: all who compare start from it."""
    name = f"warm-{recipe.seed}"
    warm = replace(recipe, learn=replace(recipe.learn, iterations=0), evaluation=replace(recipe.evaluation, tasks=1))
    played(Run(name=name, recipe=warm), folder, tell)
    again = recipe.learn.demonstrations > 0  # then they are wanted beside practice
    return replace(
        recipe,
        model=replace(recipe.model, path=str((folder / name / FINAL).resolve())),
        warm_start=replace(recipe.warm_start, epochs=0) if again else replace(recipe.warm_start, tasks=0),
    )
