"""``gymcp clean``: remove what dead runs left on the machine, and servers that nobody needs any more."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.output import console
from gymcp.envs import catalog
from gymcp.mcp_servers.cleanup import find_leftovers, remove_leftovers
from gymcp.mcp_servers.packages.garbage_collection import images_with_users, known_locks, remove_server, unused_servers
from gymcp.mcp_servers.packages.lockfile import DEFAULT
from gymcp.mcp_servers.sandbox.docker.images import remove_image


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is.")] = False,
    servers: Annotated[
        bool, typer.Option("--servers", help="Installed servers, too, that no lock names any more.")
    ] = False,
    lock: Annotated[
        list[Path] | None, typer.Option("--lock", help="One more lock whose servers and images are kept.")
    ] = None,
) -> None:
    """Remove what dead gymcp processes left: processes, containers, folders, control groups, unfinished downloads.

    What belongs to a living process is left alone. Images built from Dockerfiles go, too, once no lock names them and
    the Dockerfile has changed or is gone.
    """
    found = find_leftovers(ask_engine=True)
    for item in found:
        _say(f"{item.kind} {item.name} (of process {item.owner})")
    if found and not dry_run:
        remove_leftovers(found)
        _say(f"removed {len(found)}")
    locks = known_locks([Path(catalog.__path__[0]) / DEFAULT, DEFAULT, *(lock or [])])
    if not _clean_images(locks, dry_run) and not found:
        _say("nothing to clean")
    if servers:
        _clean_servers(locks, dry_run)


def reap_before_a_run() -> None:
    """What earlier runs left is removed; says so in one line on standard error where there was something."""
    found = find_leftovers()
    remove_leftovers(found)
    if found:
        kinds = Counter(item.kind for item in found)
        listed = ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items()))
        print(f"gymcp: removed what dead runs had left ({listed})", file=sys.stderr)


def _clean_images(locks: list[Path], dry_run: bool) -> bool:
    """Whether there was any that nothing needs."""
    images = images_with_users(locks)
    for image in images:
        what = f"image {image.name} ({image.megabytes:.0f} MB)"
        if image.needed_by:
            _say(f"{what}: kept: {image.needed_by}")
        elif not (dry_run or remove_image(image.name)):
            _say(f"{what}: is in use, and left alone")
        else:
            _say(f"{what}: nothing needs it; {'could be ' if dry_run else ''}removed")
    return not all(image.needed_by for image in images)


def _clean_servers(locks: list[Path], dry_run: bool) -> None:
    found = unused_servers(locks)
    removed = 0.0
    for server in found:
        what = f"server {server.folder} ({server.megabytes:.0f} MB)"
        if not server.is_free or not (dry_run or remove_server(server.folder)):
            _say(f"{what}: is in use, and left alone")
        else:
            _say(what)
            removed += server.megabytes
    ended = "could be removed" if dry_run else "removed"
    _say(f"servers that none of {len(locks)} locks names: {len(found)}; {removed:.0f} MB {ended}")


def _say(line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
