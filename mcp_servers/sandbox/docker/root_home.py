"""A folder in place of /root in containers of the base image, for mounts below it.

The base image shows /root to root only, and servers are another user. An interpreter that is installed in the home of
root could be mounted, but not reached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from gymcp.atomic import make_once
from gymcp.mcp_servers.sandbox.spec import Mount
from gymcp.paths import gymcp_home

HOME = PurePosixPath("/root")


def mount_root_home(mounts: Iterable[Mount]) -> list[Mount]:
    """A mount of /root with an empty place for each mount below it; none if there is no such mount, or one of /root."""
    mounts = tuple(mounts)
    if any(mount.target == HOME for mount in mounts):
        return []
    places = {mount.target.relative_to(HOME): mount.source.is_dir() for mount in mounts if HOME in mount.target.parents}
    inside = {place for place in places if any(other in place.parents for other in places)}
    own = sorted((str(place), is_folder) for place, is_folder in places.items() if place not in inside)
    if not own:
        return []

    def make(folder: Path) -> None:
        for name, is_folder in own:
            place = folder / name
            (place if is_folder else place.parent).mkdir(parents=True, exist_ok=True)
            if not is_folder:
                place.touch()

    key = hashlib.sha256(repr(own).encode()).hexdigest()[:16]
    return [Mount(source=make_once(gymcp_home() / "root-homes" / key, make), target=HOME)]
