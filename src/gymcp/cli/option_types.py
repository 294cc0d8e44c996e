"""Options that several verbs share, options that have been replaced, and a group with a default command."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gymcp.errors import ConfigError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Episodes at a time.")]
EnvName = Annotated[str, typer.Argument(help="Catalog name (see `gymcp suites`) or path of an environment file.")]
SandboxName = Annotated[str, typer.Option(help="Sandbox: bwrap, docker, or none (trusted servers only).")]
Seed = Annotated[int, typer.Option(help="Seed of all random choices.")]
TaskGlob = Annotated[str, typer.Option(help="Run only tasks whose id matches this glob.")]


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
