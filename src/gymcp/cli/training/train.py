"""``gymcp train``: credit for recorded steps, and training from it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gymcp.errors import ConfigError
from gymcp.types import Json


def command(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="A recipe, such as recipes/tiny.toml. It is code: it names an environment and arguments."),
    ] = None,
    dry_run: Annotated[
        Path | None, typer.Option("--dry-run", help="A run folder: print the credit of its steps, train nothing.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="With --dry-run: how credit is assigned, see docs/credit.md; gigpo if not said.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value, again for more: of the recipe (learn.iterations=5), or with --dry-run of the preset.",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="With --dry-run and a preset that compares with gold: environment file of the run, whose code is run."
        ),
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="With --dry-run: keep the advantages in the run, for gymcp view.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The folder of the training run.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on after the last whole iteration.")] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same metrics to the last digit every time; slower.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Train a policy by a recipe; or, with --dry-run, print the advantages that a preset gives to a recorded run.

    A recipe of somebody else is code of somebody else: it names the environment, which may be a Python file, and
    arguments for vLLM. Read it before you train by it.
    """
    options = parsed(settings or [])
    if dry_run is not None:
        if recipe is not None or out is not None or resume or deterministic:
            raise ConfigError("train: --dry-run trains nothing: it takes no recipe, --out, --resume or --deterministic")
        _part("dry_run").run(dry_run, preset or "gigpo", options, env=env, save=save, as_json=as_json)
        return
    if preset is not None:
        raise ConfigError(f"train: --preset goes with --dry-run; of a recipe: --set credit.preset={preset}")
    if env is not None:
        raise ConfigError("train: --env goes with --dry-run; of a recipe: --set env=FILE")
    if save:
        raise ConfigError("train: --save goes with --dry-run; a training run keeps its advantages by itself")
    if recipe is None:
        raise ConfigError("train: name a recipe, such as recipes/tiny.toml, or a run with --dry-run")
    if deterministic:
        options["deterministic"] = True
    _part("train_run").run(recipe, tuple(options.items()), out, resume=resume, as_json=as_json)


def _part(name: str) -> Any:
    """What needs the extra `train`: importing it takes seconds, so only who needs it does."""
    try:
        return importlib.import_module(f"gymcp.cli.training.{name}")
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
