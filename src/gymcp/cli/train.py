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
    dry_run: Annotated[Path, typer.Option("--dry-run", help="A run folder: print the credit of its steps.")],
    preset: Annotated[str, typer.Option(help="How credit is assigned: see docs/credit.md.")] = "gigpo",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the preset, as key=value; again for more.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Print the advantages that a preset gives to the steps of a recorded run, and what its anchors find there."""
    _part("dry_run").run(dry_run, preset, parsed(settings or []), as_json=as_json)


def _part(name: str) -> Any:
    """What needs the extra `train`: importing it takes seconds, so only who needs it does."""
    try:
        return importlib.import_module(f"gymcp.cli.{name}")
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
