"""Options that several verbs share, with the value of ``--tasks``; replaced options; a group with a default command."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gymcp.cli.completion import complete_environment, complete_preset, complete_run, offer
from gymcp.cli.known_names import AGENT_FORMS, MIN_COVERAGE, SANDBOXES
from gymcp.errors import ConfigError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, and no text.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Number of concurrent episodes.")]
MinCoverage = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Share of the episodes that must have a score, or there is no headline figure and no rank;"
        f" default: the run's own, else {MIN_COVERAGE}.",
    ),
]
EnvName = Annotated[
    str,
    typer.Argument(
        help="Name in the catalog (see `gymcp suites`), or path of an environment file, whose code is run.",
        autocompletion=complete_environment,
    ),
]
EnvNames = Annotated[
    list[str],
    typer.Argument(
        help="Names in the catalog (see `gymcp suites`), or paths of environment files, whose code is run.",
        metavar="ENV...",
        autocompletion=complete_environment,
    ),
]
RunFolder = Annotated[Path, typer.Argument(help="Run folder.", autocompletion=complete_run)]
SandboxName = Annotated[
    str,
    typer.Option(help="Sandbox: bwrap, docker, or none (trusted servers only).", autocompletion=offer(SANDBOXES)),
]
Seed = Annotated[int, typer.Option(help="Seed of all random choices: the same seed gives the same episodes.")]
TaskPatterns = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks",
        "-t",
        help="Task ids or globs, joined by commas, or @FILE with one a line; repeatable; default: all tasks.",
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, help="Maximum number of tasks, evenly spread; 0: all.")]
PresetOption = Annotated[
    str,
    typer.Option(
        help=f"Preset that assigns the credit, or your own, whose code is run: {AGENT_FORMS}.",
        autocompletion=complete_preset,
    ),
]
PresetSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Option of the preset as KEY=VALUE (gamma=0.9); repeatable; default: the preset's own."),
]
RunEnvironment = Annotated[
    str | None,
    typer.Option(
        "--env",
        help="Environment file of the run, whose code is run; default: the one it names, if it was run here before.",
        autocompletion=complete_environment,
    ),
]


def require_ray(address: str | None) -> str | None:
    """The address as it is, as a callback of ``--ray``. Raises ConfigError if Ray is not installed."""
    if address is not None and importlib.util.find_spec("ray") is None:
        raise ConfigError("--ray: needs Ray, which is not installed: pip install 'gymcp[scale]'")
    return address


def read_patterns(given: str | Sequence[str] | None) -> str | tuple[str, ...]:
    """Ids and globs that ``--tasks`` names: one text, or several in the order given; ``*`` if nothing is given.

    A line of a file is one pattern, even if it has commas; empty lines and lines that begin with ``#`` are left out.
    Raises ConfigError if a file cannot be read, or if no pattern is named.
    """
    if given is None:
        return "*"
    texts = [given] if isinstance(given, str) else given
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    patterns = [each for part in parts for each in (_read_file(part[1:]) if part.startswith("@") else [part])]
    if not patterns:
        raise ConfigError("--tasks: names no task; give ids, globs, or @FILE with one a line")
    unique = tuple(dict.fromkeys(patterns))
    return unique[0] if len(unique) == 1 else unique


def replaced_option(old: str, new: str) -> Any:
    """A hidden option under its old name, which raises ConfigError with the new spelling when it is used."""

    def refuse(value: object) -> object:
        if value:
            raise ConfigError(f"{old}: has been replaced by: {new}")
        return value

    return typer.Option(old, hidden=True, callback=refuse)


class DefaultCommandGroup(TyperGroup):
    """A group that runs its command ``run`` if the first word is not the name of one of its commands."""

    default = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx)):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def _read_file(name: str) -> list[str]:
    try:
        lines = [line.strip() for line in Path(name).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise ConfigError(f"--tasks @{name}: cannot be read: {reason}") from error
    patterns = [line for line in lines if line and not line.startswith("#")]
    if not patterns:
        raise ConfigError(f"--tasks @{name}: names no task; write one id or glob a line")
    return patterns
