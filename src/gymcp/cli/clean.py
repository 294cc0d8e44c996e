"""``gymcp clean``: remove what dead runs left on the machine."""

from __future__ import annotations

from typing import Annotated

import typer

from gymcp.cli.output import console
from gymcp.mcp_servers.leftovers import find_leftovers, remove_leftovers


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is.")] = False,
) -> None:
    """Remove processes, folders and control groups of gymcp processes that no longer live; others are left alone."""
    found = find_leftovers()
    for item in found:
        console.print(f"{item.kind} {item.name} (of process {item.owner})", highlight=False, markup=False)
    if not found:
        console.print("nothing to clean")
    elif not dry_run:
        remove_leftovers(found)
        console.print(f"removed {len(found)}")
