"""``gymcp clean``: remove leftovers of dead runs from the machine, and servers and interpreters that no lock needs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gymcp.cli.output import console
from gymcp.envs import catalog
from gymcp.errors import ConfigError
from gymcp.mcp_servers.cleanup import find_leftovers, remove_leftovers
from gymcp.mcp_servers.packages.garbage_collection import (
    UnusedFolder,
    find_built_images,
    find_locks,
    find_unused_pythons,
    find_unused_servers,
    remove_folder,
)
from gymcp.mcp_servers.packages.lockfile import DEFAULT_LOCK
from gymcp.mcp_servers.sandbox.docker.images import remove_image


def execute(*, dry_run: bool, servers: bool, lock: list[Path] | None) -> None:
    """Remove leftovers of dead gymcp processes, images that nothing needs, and with `servers` what no lock names."""
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
        for kind, unused in (("server", find_unused_servers(locks)), ("Python", find_unused_pythons(locks))):
            _clean_folders(kind, unused, len(locks), dry_run)


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


def _clean_folders(kind: str, unused: Sequence[UnusedFolder], locks: int, dry_run: bool) -> None:
    """Remove the folders. `kind`: word for what they hold. `locks`: number of locks, none of which names them."""
    removed = 0.0
    for each in unused:
        what = f"{kind} {each.folder} ({each.megabytes:.0f} MB)"
        if not each.is_unlocked or not (dry_run or remove_folder(each.folder)):
            _say(f"{what}: is in use, and left alone")
        else:
            _say(what)
            removed += each.megabytes
    ended = "could be removed" if dry_run else "removed"
    _say(f"{kind}s that none of {locks} locks names: {len(unused)}; {removed:.0f} MB {ended}")


def _say(line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
