"""Bytes that a server has added to a host folder, measured a slice at a time so that no walk holds up the event loop.

Counted are the files below the folder, and those that its processes hold although no name leads to them any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

_SLICE_S = 0.002
_BATCH = 64
_REST, _SHORT_REST = 200, 20
"""A walk is followed by a rest this many times as long, for each folder: half a percent of a core for all of them
together, five percent while free space is being lost."""
_LEAST_REST_S, _LONGEST_REST_S = 2.0, 60.0
ENTRY_BYTES = 4096
"""At least, per file: a million empty ones are not free."""
FILES_OUT_OF_SIGHT = 8
"""Each can be as long as what may be added in all."""
_MEGABYTE = 1_000_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WORKSPACE = "/workspace/"
"""The beginning of the names of its files, for a server."""
_SYS_PIDFD_GETFD = 438
_IN_FLIGHT = re.compile(rb"^scm_fds:\s*(\d+)", re.MULTILINE)

_libc = ctypes.CDLL(None, use_errno=True)


class AddedBytes:
    """Bytes in a folder now minus those at the first walk; symbolic links are not followed.

    ``step`` goes on with the walk under way, or begins one when its time has come: when the rest is over, or sooner
    if the file system has lost more free space than is still allowed. ``processes`` are those that use the folder.
    """

    def __init__(self, folder: Path, allowed_bytes: int, processes: Callable[[], Iterable[int]] = tuple) -> None:
        self._folder = folder
        self._allowed = allowed_bytes
        self._processes = processes
        self._look = Look(folder, ())
        self._walk: Generator[int, None, None] | None = self._look.sizes()
        self._walked = 0
        self._walk_s = 0.0
        self._last_walk = 0.0
        self._most_free = self._free_at_walk = self._free_bytes()
        self._at_start: int | None = None
        self._was_hidden = False
        self._du: subprocess.Popen[bytes] | None = None
        self.added = 0

    def step(self, *, folders: int) -> str | None:
        """The limit in words, once more has been added than is allowed. ``folders``: measured by this process."""
        begin = time.monotonic()
        if self._walk is None:
            rested = begin - self._last_walk
            free = self._free_bytes()
            self._most_free = max(self._most_free, free)
            lost = self._free_at_walk - free
            if lost > max(self._allowed - self.added, self._allowed // 8):
                due = self._walk_s * _SHORT_REST * folders
            else:
                due = max(self._walk_s * _REST * folders, _LEAST_REST_S)
            if rested < min(due, _LONGEST_REST_S):
                return None
            self._look = Look(self._folder, self._processes())
            self._walk, self._walked, self._walk_s = self._look.sizes(), 0, 0.0
            self._free_at_walk = self._free_bytes()
        for size in self._walk:
            self._walked += size
            if time.monotonic() - begin > _SLICE_S:
                self._walk_s += time.monotonic() - begin
                return self._exceeded(self._walked)  # far too much is seen before the walk is over
        self._walk = None
        self._walk_s += time.monotonic() - begin
        self._last_walk = time.monotonic()
        if self._at_start is None:
            self._at_start = self._walked
        self.added = self._walked - self._at_start
        return self._exceeded(self._walked) or self._behind_closed_folders() or self._out_of_sight()

    def close(self) -> None:
        """Ends the walk under way, which holds a descriptor, and what measures beside it."""
        if self._walk is not None:
            self._walk.close()
        if self._du is not None:
            self._du.kill()
            self._du.communicate()

    def _exceeded(self, walked: int) -> str | None:
        if self._look.is_too_deep:
            return "disk: the workspace has a path that is too long to be looked into"
        if self._at_start is not None and walked - self._at_start > self._allowed:
            return f"disk: the workspace grew by more than {self._allowed // _MEGABYTE} MB"
        return None

    def _behind_closed_folders(self) -> str | None:
        """Measures beside the walk as root of a user namespace, to whom no folder of the user's is closed."""
        walked = 0
        if self._du is not None and self._du.poll() is not None:
            said, self._du = self._du.communicate()[0], None
            walked = int(said.split(None, 1)[0]) if said[:1].isdigit() else 0
        if self._look.is_closed and self._du is None:
            with contextlib.suppress(OSError):  # without the program free space is all there is
                command = ["unshare", "--user", "--map-root-user", "du", "-sb", "--", str(self._folder)]
                self._du = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return self._exceeded(walked)

    def _out_of_sight(self) -> str | None:
        """The sizes of unnamed files in flight or mapped are not known, but none is longer than what may be added.

        A few are allowed as long as the file system has not lost as much, which others may have taken. Two looks must
        agree: a descriptor in flight usually arrives.
        """
        hidden = self._look.hidden > 0 or self._look.is_closed
        was_hidden, self._was_hidden = self._was_hidden, hidden
        if not (hidden and was_hidden):
            return None
        if self._look.hidden > FILES_OUT_OF_SIGHT:
            return (
                f"disk: it keeps {self._look.hidden} files where they cannot be measured; at most {FILES_OUT_OF_SIGHT}"
            )
        if self._most_free - self._free_bytes() > self._allowed:
            return (
                f"disk: {self._allowed // _MEGABYTE} MB of free space are gone, and the server keeps files "
                "where they cannot be measured"
            )
        return None

    def _free_bytes(self) -> int:
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return 0
        return found.f_bfree * found.f_frsize


class Look:
    """One walk, and what it could not see."""

    def __init__(self, folder: Path, processes: Iterable[int]) -> None:
        self._folder = folder
        self._processes = tuple(processes)
        self.is_closed = False
        """There is a folder that the harness's user may not enter."""
        self.hidden = 0
        """Files that are held in a way that does not tell their size."""
        self.is_too_deep = False
        """Something lies below a path that no system call takes."""

    def sizes(self) -> Generator[int, None, None]:
        """Summed over a few files at a time. A sparse file counts as long as it says it is: copies of it will be."""
        with contextlib.suppress(OSError):
            root = os.open(self._folder, _FOLDER)
            try:
                yield from self._named(root)
            finally:
                os.close(root)
            seen: set[int] = set()
            for process in self._processes:
                yield self._unnamed(process, seen)

    def _named(self, root: int) -> Iterator[int]:
        pending = ["."]
        total = seen = 0
        while pending:
            path = pending.pop()
            try:
                folder = os.open(path, _FOLDER, dir_fd=root)
            except OSError as error:
                self.is_too_deep = self.is_too_deep or error.errno == errno.ENAMETOOLONG
                self.is_closed = self.is_closed or error.errno == errno.EACCES
                continue
            try:
                with contextlib.suppress(OSError), os.scandir(folder) as entries:
                    for entry in entries:
                        with contextlib.suppress(OSError):
                            total += _bytes(entry.stat(follow_symlinks=False))
                            if entry.is_dir(follow_symlinks=False):
                                pending.append(f"{path}/{entry.name}")
                        seen += 1
                        if seen % _BATCH == 0:
                            yield total
                            total = 0
            finally:
                os.close(folder)
        yield total

    def _unnamed(self, process: int, seen: set[int]) -> int:
        """Sizes of the files without a name that the process holds, each inode counted once."""
        total = 0
        try:
            for number in os.listdir(f"/proc/{process}/fdinfo"):  # noqa: PTH208
                opened = _opened(process, int(number))
                if opened is None:
                    self.hidden += Path(f"/proc/{process}/fdinfo/{number}").exists()
                    continue
                found, name = opened
                if stat.S_ISSOCK(found.st_mode):
                    self.hidden += _in_flight(process, number)
                elif found.st_nlink == 0 and name.startswith(_WORKSPACE) and found.st_ino not in seen:
                    seen.add(found.st_ino)
                    total += _bytes(found)
            self.hidden += len({*_mapped(process)} - seen)
        except PermissionError:  # a process of a container that cannot be traced
            self.hidden += 1
        except OSError:  # it has ended meanwhile
            pass
        return total


def _bytes(found: os.stat_result) -> int:
    return max(found.st_size, found.st_blocks * 512, ENTRY_BYTES)


def _opened(process: int, number: int) -> tuple[os.stat_result, str] | None:
    """The file and its name as seen from inside; None if it was closed, or may not be looked at.

    A process that cannot be traced hides its descriptors from all but root, not from those who own its namespace.
    """
    with contextlib.suppress(OSError):
        return _described(Path(f"/proc/{process}/fd/{number}"))
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(process)
        try:
            copy = _libc.syscall(_SYS_PIDFD_GETFD, handle, number, 0)
        finally:
            os.close(handle)
        if copy >= 0:
            try:
                return _described(Path(f"/proc/self/fd/{copy}"))
            finally:
                os.close(copy)
    return None


def _described(link: Path) -> tuple[os.stat_result, str]:
    return link.stat(), str(link.readlink())


def _in_flight(process: int, number: str) -> int:
    """Number of descriptors that wait in the socket to be received: only the receiver will know of which files."""
    with Path(f"/proc/{process}/fdinfo/{number}").open("rb") as file:
        found = _IN_FLIGHT.search(file.read())
    return int(found[1]) if found else 0


def _mapped(process: int) -> Iterator[int]:
    """Inodes of files without a name that the process has in its memory."""
    with Path(f"/proc/{process}/maps").open("rb") as file:
        for line in file:
            if line.endswith(b" (deleted)\n"):
                *_, inode, name = line.split(None, 5)
                if name.startswith(_WORKSPACE.encode()):
                    yield int(inode)
