"""A command as a user without rights, by a root that may have its Python and its checkout where others may not look."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

UID = 65534
IMPORT_PATH = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1] / "src")))
"""PYTHONPATH of a harness in a process of its own: the modules of the tests, and gymcp of this checkout."""
_OPEN = """
set -e
mount --make-rprivate /
stage=$1; user=$2; groups=$3; shift 3
mount -t tmpfs -o mode=755 none "$stage"
n=0
for path in $SHOWN; do n=$((n+1)); mkdir "$stage/$n"; mount --rbind "$path" "$stage/$n"; done
for closed in $CLOSED; do mount -t tmpfs -o mode=755 none "$closed"; done
n=0
for path in $SHOWN; do n=$((n+1)); mkdir -p "$path"; mount --rbind "$stage/$n" "$path"; done
exec setpriv --reuid "$user" --regid "$user" $groups --bounding-set -all -- "$@"
"""


def as_ordinary_user(argv: Sequence[str], stage: Path, groups: Sequence[int] = ()) -> list[str]:
    """The command; `stage` is an empty folder.

    In a mount namespace of its own, where folders that are closed to others show what the harness itself needs of them.
    """
    needed = [Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[1]]
    closed = {path: found for path in needed if (found := _closed_above(path)) is not None}
    places = {
        "SHOWN": " ".join(sorted(str(path) for path in closed)),
        "CLOSED": " ".join(sorted({str(folder) for folder in closed.values()})),
    }
    extra = "--groups=" + ",".join(map(str, groups)) if groups else "--clear-groups"
    variables = [f"{name}={value}" for name, value in places.items()]
    opened = ["env", *variables, "unshare", "--mount", "sh", "-c", _OPEN, "sh", str(stage), str(UID), extra]
    return [*opened, *argv]


def _closed_above(path: Path) -> Path | None:
    """The topmost folder above the path that other users may not pass."""
    above = [*reversed(path.parents), path]
    return next((folder for folder in above if not folder.stat().st_mode & stat.S_IXOTH), None)


def groups_for(socket: Path) -> list[int]:
    """Groups whose members may use the socket."""
    try:
        found = socket.stat()
    except OSError:
        return []
    return [found.st_gid] if found.st_mode & stat.S_IWGRP and found.st_gid != os.getgid() else []
