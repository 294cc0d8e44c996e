"""``gymcp sandbox``: prepare this machine for the sandboxes."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from gymcp.cli.output import console
from gymcp.mcp_servers.sandbox.docker.images import base_image, build_base, build_dockerfile, exists


def build(dockerfile: Path | None, *, mirror: str | None, rebuild: bool) -> None:
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
