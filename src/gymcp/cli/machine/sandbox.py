"""``gymcp sandbox``: prepare this machine for the sandboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gymcp.cli.output import console
from gymcp.mcp_servers.sandbox.docker.images import base_image, build_base, build_dockerfile, exists

app = typer.Typer(no_args_is_help=True)


@app.callback()
def verbs() -> None:
    """Prepare this machine for the sandboxes."""


@app.command("build")
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
    if dockerfile is None and exists(base_image()) and not rebuild:
        console.print(f"{base_image()} is there already", highlight=False)
        return
    with console.status("starting") as status:

        def say(text: str) -> None:
            status.update(Text(text))
            if not console.is_terminal:
                console.print(text, highlight=False, markup=False)

        name = build_base(say, mirror=mirror) if dockerfile is None else build_dockerfile(dockerfile, say)
    console.print(f"built {name}", highlight=False)
