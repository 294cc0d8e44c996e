"""Bytes that a server has added to a host folder, measured in short slices so that no walk blocks the event loop.

The files below the folder count, and the files that have no name any more but that the server's processes hold.
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
"""Seconds of the event loop's time that one step of a walk takes."""
_ENTRIES_PER_SLICE_CHECK = 64
_REST_FACTOR, _SHORT_REST_FACTOR = 200, 20
"""Length of the rest after a walk, as a multiple of the walk's CPU time and of the number of folders: half a percent of
a core for all folders together; the short rest, five percent, is for a file system that loses free space."""
_MIN_REST_S, _MAX_REST_S = 2.0, 60.0
ENTRY_BYTES = 4096
"""Fewest bytes that a file counts: a million empty files are not free."""
MAX_MAPPED_FILES = 1
"""Largest number of mapped files without a name whose size cannot be measured; each can be as long as all that may be
added. For a harness with all rights of root there is none."""
MAX_CLOSED_PROCESSES = 8
"""Largest number of a container's processes, and of their descriptors, that the harness's user may not look into."""
_MEGABYTE = 1_000_000
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WORKSPACE_PREFIX = "/workspace/"
"""Prefix of the names of workspace files as a server sees them."""
_SYS_PIDFD_GETFD = 438
_IN_FLIGHT = re.compile(rb"^scm_fds:\s*(\d+)", re.MULTILINE)

_libc = ctypes.CDLL(None, use_errno=True)


class AddedBytes:
    """Bytes in a folder now minus the bytes at the first walk; symbolic links are not followed.

    ``step`` continues the walk under way, or begins one when it is due: after the rest, or sooner if the file system
    has lost more free space than may still be added. ``processes`` returns the processes that use the folder.
    """

    def __init__(self, folder: Path, allowed_bytes: int, processes: Callable[[], Iterable[int]] = tuple) -> None:
        self._folder = folder
        self._allowed_bytes = allowed_bytes
        self._processes = processes
        self._scan = FolderScan(folder, ())
        self._walk: Generator[int, None, None] | None = self._scan.sizes()
        self._walked_bytes = 0
        self._walk_s = 0.0
        """CPU seconds of the last walk; its length by the clock says how busy the machine was, not what it cost."""
        self._last_walk = 0.0
        self._most_free = self._free_at_walk = self._free_bytes()
        self._initial_bytes: int | None = None
        self._was_hidden = False
        self._were_in_flight: set[int] = set()
        self._du: subprocess.Popen[bytes] | None = None
        self.added = 0

    def step(self, *, folders: int) -> str | None:
        """Measure for a moment; return the limit in words once more has been added than is allowed, else None.

        ``folders`` is the number of folders that this process measures.
        """
        if (limit := self._read_du()) is not None:
            return limit
        begin, begin_cpu = time.monotonic(), time.thread_time()
        if self._walk is None:
            rested = begin - self._last_walk
            free = self._free_bytes()
            self._most_free = max(self._most_free, free)
            lost = self._free_at_walk - free
            if lost > max(self._allowed_bytes - self.added, self._allowed_bytes // 8):
                due = self._walk_s * _SHORT_REST_FACTOR * folders
            else:
                due = max(self._walk_s * _REST_FACTOR * folders, _MIN_REST_S)
            if rested < min(due, _MAX_REST_S):
                return None
            self._scan = FolderScan(self._folder, self._processes())
            self._walk, self._walked_bytes, self._walk_s = self._scan.sizes(), 0, 0.0
            self._free_at_walk = self._free_bytes()
        for size in self._walk:
            self._walked_bytes += size
            if time.monotonic() - begin > _SLICE_S:
                self._walk_s += time.thread_time() - begin_cpu
                return self._growth_limit(self._walked_bytes)  # gross growth shows before the walk is over
        self._walk = None
        self._walk_s += time.thread_time() - begin_cpu
        self._last_walk = time.monotonic()
        if self._initial_bytes is None:
            self._initial_bytes = self._walked_bytes
        self.added = self._walked_bytes - self._initial_bytes
        self._start_du()
        return self._growth_limit(self._walked_bytes) or self._check_unmeasured()

    def close(self) -> None:
        """End the walk under way, which holds a descriptor, and the ``du`` process beside it."""
        if self._walk is not None:
            self._walk.close()
        if self._du is not None:
            self._du.kill()
            self._du.communicate()

    def _growth_limit(self, walked: int) -> str | None:
        if self._scan.is_too_deep:
            return "disk: the workspace has a path that is too long to be looked into"
        if self._initial_bytes is not None and walked - self._initial_bytes > self._allowed_bytes:
            return f"disk: the workspace grew by more than {self._allowed_bytes // _MEGABYTE} MB"
        return None

    def _start_du(self) -> None:
        """Measure with ``du`` as root of a user namespace, which may enter every folder of the user."""
        if self._scan.is_closed and self._du is None:
            with contextlib.suppress(OSError):  # without the program, only the free space is watched
                command = ["unshare", "--user", "--map-root-user", "du", "-sb", "--", str(self._folder)]
                self._du = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def _read_du(self) -> str | None:
        if self._du is None or self._du.poll() is None:
            return None
        output, self._du = self._du.communicate()[0], None
        return self._growth_limit(int(output.split(None, 1)[0])) if output[:1].isdigit() else None

    def _check_unmeasured(self) -> str | None:
        """The limit in words if the server keeps files whose size cannot be measured, else None.

        Two successive walks must agree: a descriptor in flight usually arrives. One that does not may be a socket with
        any number of others in flight, so none may stay in the same socket. A mapped file without a name may be a
        library that was replaced, so one is allowed as long as the file system has not lost that much free space, which
        other programs may have taken.
        """
        scan = self._scan
        kept, self._were_in_flight = self._were_in_flight & scan.in_flight.keys(), set(scan.in_flight)
        hidden = scan.closed > 0 or scan.is_closed or bool(scan.mapped)
        was_hidden, self._was_hidden = self._was_hidden, hidden
        if kept:
            count = sum(scan.in_flight[inode] for inode in kept)
            return f"disk: it keeps {count} descriptors in a socket, where they cannot be measured"
        if not (hidden and was_hidden):
            return None
        if len(scan.mapped) > MAX_MAPPED_FILES or scan.closed > MAX_CLOSED_PROCESSES:
            kinds = f"{len(scan.mapped)} mapped files and {scan.closed} closed processes or descriptors"
            return f"disk: it keeps {kinds} that cannot be measured"
        if self._most_free - self._free_bytes() > self._allowed_bytes:
            return (
                f"disk: {self._allowed_bytes // _MEGABYTE} MB of free space are gone, and the server keeps files "
                "where they cannot be measured"
            )
        return None

    def _free_bytes(self) -> int:
        try:
            status = os.statvfs(self._folder)
        except OSError:
            return 0
        return status.f_bfree * status.f_frsize


class FolderScan:
    """One walk over a folder, and a record of what it could not measure."""

    def __init__(self, folder: Path, processes: Iterable[int]) -> None:
        self._folder = folder
        self._processes = tuple(processes)
        self.is_closed = False
        """True if the harness's user may not enter some folder."""
        self.in_flight: dict[int, int] = {}
        """Inode of a socket -> descriptors that wait in it: only their receiver can tell their files."""
        self.mapped: set[int] = set()
        """Inodes of files without a name that are mapped, and whose size cannot be measured."""
        self.closed = 0
        """Number of processes and descriptors that the harness's user may not look into."""
        self.is_too_deep = False
        """True if some path is longer than a system call takes."""

    def sizes(self) -> Generator[int, None, None]:
        """Sums over a few files at a time. A sparse file counts with its apparent size: its copies will have it."""
        with contextlib.suppress(OSError):
            root = os.open(self._folder, _OPEN_FOLDER)
            try:
                yield from self._sum_named(root)
            finally:
                os.close(root)
            seen: set[int] = set()
            for process in self._processes:
                yield self._sum_unnamed(process, seen)

    def _sum_named(self, root: int) -> Iterator[int]:
        pending = ["."]
        total = seen = 0
        while pending:
            path = pending.pop()
            try:
                folder = os.open(path, _OPEN_FOLDER, dir_fd=root)
            except OSError as error:
                self.is_too_deep = self.is_too_deep or error.errno == errno.ENAMETOOLONG
                self.is_closed = self.is_closed or error.errno == errno.EACCES
                continue
            try:
                with contextlib.suppress(OSError), os.scandir(folder) as entries:
                    for entry in entries:
                        with contextlib.suppress(OSError):
                            total += _size_of(entry.stat(follow_symlinks=False))
                            if entry.is_dir(follow_symlinks=False):
                                pending.append(f"{path}/{entry.name}")
                        seen += 1
                        if seen % _ENTRIES_PER_SLICE_CHECK == 0:
                            yield total
                            total = 0
            finally:
                os.close(folder)
        yield total

    def _sum_unnamed(self, process: int, seen: set[int]) -> int:
        """Sum over the files without a name that the process has open or mapped, each inode counted once."""
        total = 0
        try:
            for number in os.listdir(f"/proc/{process}/fdinfo"):  # noqa: PTH208
                opened = _stat_descriptor(process, int(number))
                if opened is None:
                    self.closed += Path(f"/proc/{process}/fdinfo/{number}").exists()
                    continue
                status, name = opened
                if stat.S_ISSOCK(status.st_mode):
                    if count := _count_in_flight(process, number):
                        self.in_flight[status.st_ino] = count
                elif status.st_nlink == 0 and name.startswith(_WORKSPACE_PREFIX) and status.st_ino not in seen:
                    seen.add(status.st_ino)
                    total += _size_of(status)
            for inode, place in _find_unnamed_mappings(process):
                if inode in seen:
                    continue
                try:  # needs the right to follow these links, which root has
                    total += _size_of(place.stat())
                    seen.add(inode)
                except PermissionError:
                    self.mapped.add(inode)
                except FileNotFoundError:  # it is mapped no longer, but others may be
                    continue
        except PermissionError:  # a process of a container that cannot be traced
            self.closed += 1
        except OSError:  # the process has ended meanwhile
            pass
        return total


def _size_of(status: os.stat_result) -> int:
    return max(status.st_size, status.st_blocks * 512, ENTRY_BYTES)


def _stat_descriptor(process: int, number: int) -> tuple[os.stat_result, str] | None:
    """The file and its name as the server sees it; None if it was closed, or this process may not read it.

    A process that cannot be traced hides its descriptors in /proc from all users but root, but ``pidfd_getfd`` still
    works for the owner of its user namespace.
    """
    with contextlib.suppress(OSError):
        return _stat_and_name(Path(f"/proc/{process}/fd/{number}"))
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(process)
        try:
            copy = _libc.syscall(_SYS_PIDFD_GETFD, handle, number, 0)
        finally:
            os.close(handle)
        if copy >= 0:
            try:
                return _stat_and_name(Path(f"/proc/self/fd/{copy}"))
            finally:
                os.close(copy)
    return None


def _stat_and_name(link: Path) -> tuple[os.stat_result, str]:
    return link.stat(), str(link.readlink())


def _count_in_flight(process: int, number: str) -> int:
    """Number of descriptors that wait in the socket to be received; 0 if it has been closed meanwhile."""
    match = None
    with contextlib.suppress(FileNotFoundError), Path(f"/proc/{process}/fdinfo/{number}").open("rb") as file:
        match = _IN_FLIGHT.search(file.read())
    return int(match[1]) if match else 0


def _find_unnamed_mappings(process: int) -> Iterator[tuple[int, Path]]:
    """Inodes of files without a name that the process has mapped, and the kernel's links to them."""
    with Path(f"/proc/{process}/maps").open("rb") as file:
        for line in file:
            if line.endswith(b" (deleted)\n"):
                addresses, *_, inode, name = line.split(None, 5)
                if name.startswith(_WORKSPACE_PREFIX.encode()):
                    start, _, end = addresses.partition(b"-")
                    yield int(inode), Path(f"/proc/{process}/map_files/{int(start, 16):x}-{int(end, 16):x}")
