"""``gymcp train``: credit for recorded steps, and training from it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from gymcp.cli.output import console, in_one_line, print_json
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore, open_run
from gymcp.trainers.anchors import ANCHORS, anchor_codes
from gymcp.trainers.batch import Floats, StepBatch, batch_of
from gymcp.trainers.credit import Credit, assign_credit
from gymcp.trainers.diagnostics import anchor_statistics
from gymcp.trainers.presets import Preset, make_preset
from gymcp.types import Json, Task, Trajectory

SHOWN = 20
"""Episodes printed; ``--json`` has all."""


def command(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe, such as recipes/tiny.toml.")] = None,
    dry_run: Annotated[
        Path | None, typer.Option("--dry-run", help="A run folder: print the credit of its steps, train nothing.")
    ] = None,
    preset: Annotated[str, typer.Option(help="How credit is assigned: see docs/credit.md.")] = "gigpo",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value, again for more: of the recipe (learn.iterations=5), or with --dry-run of the preset.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the training run.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on after the last whole iteration.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Train a policy by a recipe; or, with --dry-run, print the advantages that a preset gives to a recorded run."""
    options = parsed(settings or [])
    if dry_run is None:
        if recipe is None:
            raise ConfigError("train: name a recipe, such as recipes/tiny.toml, or a run with --dry-run")
        _trainer().run(recipe, tuple(options.items()), out, resume=resume, as_json=as_json)
        return
    chosen = make_preset(preset, **options)
    batch = _batch(dry_run, chosen)
    credit = assign_credit(batch, chosen)
    anchors: dict[str, Json] = {
        name: asdict(anchor_statistics(credit.batch, anchor_codes(credit.batch.sources, name)))
        for name in ANCHORS
        if len(credit.batch.tasks)
    }
    if as_json:
        print_json(_as_json(preset, options, credit, anchors))
    else:
        _print(preset, credit, anchors)


def _trainer() -> Any:
    """What trains: importing it takes seconds, so only who trains does."""
    try:
        return importlib.import_module("gymcp.cli.train_run")
    except ModuleNotFoundError as error:
        raise ConfigError(f"train: needs '{error.name}', which is not installed: pip install 'gymcp[train]'") from error


def parsed(settings: list[str]) -> dict[str, Json]:
    """``["gamma=0.9"]`` -> ``{"gamma": 0.9}``; what is no JSON is text. Raises ConfigError for what has no ``=``."""
    found: dict[str, Json] = {}
    for each in settings:
        key, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(f"--set {each}: must be key=value")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return found


def _batch(folder: Path, preset: Preset) -> StepBatch:
    run = open_run(folder)
    tasks: Mapping[str, Task] = {}
    if any(type(shaper).__name__ == "MatchedCalls" for shaper in preset.shapers):
        env = load_env(load_spec(str(run.config.get("source", ""))))
        tasks = {task.id: task for task in env.suite.tasks}
    with TrajectoryStore.open(folder) as store:
        return batch_of(store.iter_trajectories(latest=True), tasks)


def _as_json(preset: str, options: Mapping[str, Json], credit: Credit, anchors: Mapping[str, Json]) -> Json:
    rows = np.split(credit.advantage, credit.batch.starts[1:-1])
    return {
        "preset": preset,
        "options": options,
        "episodes": len(credit.batch.tasks),
        "steps": int(credit.batch.starts[-1]),
        "dropped": credit.dropped,
        "anchors": anchors,
        "advantages": [
            {"id": record.id, "task": record.task, "trial": record.trial, "score": record.score, "steps": row.tolist()}
            for record, row in zip(credit.batch.sources, rows, strict=True)
        ],
    }


def _told_first(episode: tuple[Trajectory, Floats]) -> tuple[bool, str, int]:
    record, row = episode
    return not row.any(), record.task, record.trial


def _print(preset: str, credit: Credit, anchors: Mapping[str, Mapping[str, Json]]) -> None:
    batch = credit.batch
    console.print(f"{preset}: {len(batch.tasks)} episodes, {int(batch.starts[-1])} steps, {credit.dropped} dropped")
    table = Table(title="advantages", title_justify="left", header_style="bold")
    for heading in ("task", "trial", "score", "steps"):
        table.add_column(heading)
    rows = np.split(credit.advantage, batch.starts[1:-1])
    for record, row in sorted(zip(batch.sources, rows, strict=True), key=_told_first)[:SHOWN]:
        steps = " ".join(f"{value:+.3f}" for value in row[:12]) + (f" ... {len(row)} in all" if len(row) > 12 else "")
        table.add_row(in_one_line(record.task), str(record.trial), f"{record.score:.2f}", steps)
    console.print(table)
    if len(rows) > SHOWN:
        console.print(f"{len(rows) - SHOWN} more episodes: --json prints all")
    means = Table(title="anchors: where steps can be compared", title_justify="left", header_style="bold")
    for heading in (
        "anchor", "states", "each", "most", "alone", "again", "weight", "index",
    ):  # fmt: skip
        means.add_column(heading, justify="left" if heading == "anchor" else "right", no_wrap=heading == "anchor")
    for name, found in anchors.items():
        shares = (f"{100 * found[key]:.0f} %" for key in ("singletons", "self_repeats", "step_share", "follows_turn"))
        means.add_row(name, str(found["states"]), f"{found['mean_group']:.1f}", str(found["largest_group"]), *shares)
    console.print(means)
    console.print(
        "each, most: steps in a state. alone: no other shares its state. again: an episode came back to it.\n"
        "weight: the step part's share of all credit. index: how much of it the step's number alone explains."
    )
    if not np.any(credit.advantage):
        console.print("every advantage is 0: all episodes of each task scored alike; try more --trials, or other tasks")
