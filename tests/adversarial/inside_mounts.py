"""Attempts on every mount and inode that a sandbox shows. Runs inside; standard library only.

A file system is the host's if the harness has it mounted, too: `given["host_devices"]`, as in /proc/self/mountinfo.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from inside import Given, Prevented, attempt

GROUP = "files"
_VIEWS = ("proc", "sysfs", "cgroup", "cgroup2")
"""Views of the kernel's own records, on which there are attempts of their own."""
_UPPER_LEVELS = 3
_OWN_KINDS = ("tmpfs", "devpts", "mqueue")
_ESCAPED = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


class Mounted(NamedTuple):
    device: str
    root: str
    """Folder of the file system that is mounted: all of it if "/"."""
    place: str
    kind: str
    read_only: bool

    def is_own(self, given: Given) -> bool:
        """True for a file system that was made for this sandbox alone."""
        return self.kind in _OWN_KINDS and self.device not in given["host_devices"]


def list_mounts() -> list[Mounted]:
    found = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields, _, source = line.partition(" - ")
            _, _, device, root, place, options = fields.split()[:6]
            read_only = "ro" in options.split(",") or "ro" in source.split()[-1].split(",")
            for escaped, character in _ESCAPED.items():
                place = place.replace(escaped, character)
            found.append(Mounted(device, root, place, source.split()[0], read_only))
    return found


def _walk(start: str, *, usr_levels: int = 100) -> Iterator[tuple[str, Mounted]]:
    """Folders and plain files below a folder, that folder too, each with its mount; of /usr, so many levels.

    The working folder is left out, which is the server's or the program's own, as are views of the kernel.
    """
    mounts = {mount.place: mount for mount in list_mounts()}  # a later mount covers an earlier one
    above = max((place for place in mounts if f"{start}/".startswith(f"{place.rstrip('/')}/")), key=len)
    waiting, working_folder = [(start, mounts[above])], os.getcwd()
    while waiting:
        folder, mount = waiting.pop()
        if mount.kind in _VIEWS or folder == working_folder != "/":
            continue
        yield folder, mount
        if folder.startswith("/usr/") and folder.count("/") > usr_levels:
            continue
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                within, mode = mounts.get(entry.path), 0
                with contextlib.suppress(OSError):
                    mode = entry.stat(follow_symlinks=False).st_mode if within is None else os.stat(entry.path).st_mode
                if stat.S_ISDIR(mode):
                    waiting.append((entry.path, within or mount))
                elif stat.S_ISREG(mode):
                    yield entry.path, within or mount


@attempt(GROUP)
def see_a_whole_file_system_of_the_host(given: Given) -> str:
    for mount in list_mounts():
        is_hosts = mount.device in given["host_devices"] and mount.kind not in _VIEWS
        if is_hosts and mount.root == "/" and os.path.isdir(mount.place):
            return f"all of a {mount.kind} at {mount.place}"
    raise Prevented("what is mounted of the host are parts")


@attempt(GROUP)
def write_a_file_system_of_the_host(given: Given) -> str:
    def is_open(mount: Mounted) -> bool:
        return not (mount.read_only or mount.is_own(given) or mount.kind in _VIEWS)

    mounts = list_mounts()
    for start in ("/tmp", *(mount.place for mount in mounts if is_open(mount))):
        found = _walk(start) if os.path.isdir(start) else ((start, mount) for mount in mounts if mount.place == start)
        for path, mount in found:
            is_device = stat.S_ISCHR(os.stat(path).st_mode)
            if is_open(mount) and not is_device and os.access(path, os.W_OK):
                return f"may write {path} of {mount.kind}, device {mount.device}"
    raise Prevented(f"{len(mounts)} mounts are read-only, the sandbox's own, or hold nothing that can be written")


@attempt(GROUP, control="root")
def own_a_system_file(given: Given) -> str:
    """The kernel lets the owner alone read a file or a folder without a note of when.

    Under an ordinary user the server has that user's id, and so owns what the harness made for it: not the system's.
    The host's /usr is the same mount on each start path: one path looks at all of it, the others at its upper levels.
    """
    seen, levels = 0, 100 if given["walks_all"] else _UPPER_LEVELS
    for path, mount in _walk("/usr" if given["harness_user"] else "/", usr_levels=levels):
        if mount.is_own(given):
            continue
        seen += 1
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NOATIME | os.O_NOFOLLOW | os.O_NONBLOCK))
        except OSError:
            continue
        return f"owns {path}"
    if seen < 100:
        raise RuntimeError(f"only {seen} files and folders are in sight")
    raise Prevented(f"none of {seen} files and folders is its own")
