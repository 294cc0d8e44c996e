"""``gymcp clean``: remove leftovers of dead runs from the machine, and servers that no lock needs."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from gymcp.cli.output import console
from gymcp.envs import catalog
from gymcp.errors import ConfigError
from gymcp.mcp_servers.cleanup import find_leftovers, remove_leftovers
from gymcp.mcp_servers.packages.garbage_collection import (
    find_built_images,
    find_locks,
    find_unused_servers,
    remove_server,
)
from gymcp.mcp_servers.packages.lockfile import DEFAULT_LOCK
from gymcp.mcp_servers.sandbox.docker.images import remove_image


def execute(*, dry_run: bool, servers: bool, lock: list[Path] | None) -> None:
    """Remove leftovers of dead gymcp processes, images that nothing needs, and with `servers` unlocked servers."""
    if missing := [path for path in lock or [] if not path.is_file()]:
        raise ConfigError(f"clean: --lock {missing[0]}: not found, so its servers would be removed; give its path")
    leftovers = find_leftovers(ask_engine=True)
    for item in leftovers:
        _say(f"{item.kind} {item.name} (of process {item.owner})")
    if leftovers and not dry_run:
        remove_leftovers(leftovers)
        _say(f"removed {len(leftovers)}")
    locks = find_locks([Path(catalog.__path__[0]) / DEFAULT_LOCK, DEFAULT_LOCK, *(lock or [])])
    if not _clean_images(locks, dry_run) and not leftovers:
        _say("nothing to clean")
    if servers:
        _clean_servers(locks, dry_run)


def remove_orphans() -> None:
    """Remove leftovers of dead runs, and print one line about them on standard error if there were any."""
    leftovers = find_leftovers()
    remove_leftovers(leftovers)
    if leftovers:
        kinds = Counter(item.kind for item in leftovers)
        listed = ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items()))
        print(f"gymcp: removed what dead runs had left ({listed})", file=sys.stderr)


def _clean_images(locks: list[Path], dry_run: bool) -> bool:
    """Remove images that nothing needs; True if there were any."""
    images = find_built_images(locks)
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
    leftovers = find_unused_servers(locks)
    removed = 0.0
    for server in leftovers:
        what = f"server {server.folder} ({server.megabytes:.0f} MB)"
        if not server.is_unlocked or not (dry_run or remove_server(server.folder)):
            _say(f"{what}: is in use, and left alone")
        else:
            _say(what)
            removed += server.megabytes
    ended = "could be removed" if dry_run else "removed"
    _say(f"servers that none of {len(locks)} locks names: {len(leftovers)}; {removed:.0f} MB {ended}")


def _say(line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
