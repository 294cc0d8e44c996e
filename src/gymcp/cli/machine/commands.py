"""Options of the verbs doctor, clean and sandbox; their work is in the modules beside this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.lazy_verbs import defer_to
from gymcp.cli.option_types import AsJson, require_ray

sandbox = typer.Typer(no_args_is_help=True, add_completion=False)


@defer_to("machine.doctor:execute")
def doctor(
    as_json: AsJson = False,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Check all nodes of a Ray cluster instead: auto or its address; default: this machine.",
            callback=require_ray,
        ),
    ] = None,
) -> None:
    """Check this machine; print the command that fixes each failure.

    Exit code 1 if a requirement is missing.
    """


@defer_to("machine.clean:execute")
def clean(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be removed, without removing it.")
    ] = False,
    servers: Annotated[
        bool,
        typer.Option("--servers", help="Remove installed servers and fetched Pythons that no lock names, as well."),
    ] = False,
    lock: Annotated[
        list[Path] | None,
        typer.Option("--lock", help="Lock file whose servers and images are kept, as well; repeatable; default: none."),
    ] = None,
) -> None:
    """Remove what killed gymcp processes left on this machine.

    That is: processes, containers, folders, control groups, unfinished downloads. Everything that belongs to a living
    process stays. An image built from a Dockerfile is removed as well once no lock names it and the Dockerfile has
    changed or is gone.
    """


@sandbox.callback()
def prepare() -> None:
    """Prepare this machine for the sandboxes."""


@sandbox.command("build")
@defer_to("machine.sandbox:build")
def build(
    dockerfile: Annotated[
        Path | None,
        typer.Argument(help="Dockerfile to build, in its folder; default: the base image (as root, about a minute)."),
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(help="URL of a Debian mirror for the base image; default: this machine's.")
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build the base image even if it exists.")] = False,
) -> None:
    """Build an image for --sandbox docker, without any registry."""
