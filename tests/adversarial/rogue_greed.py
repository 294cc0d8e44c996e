"""Attempts to use up the machine, bounded: unconfined they stop by themselves. Runs inside; standard library only.

Each says what it got. Some hold it until they are ended, at most so long as `HELD_S`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

MB = 1_000_000
HELD_S = 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p


def _hold(seconds: float) -> None:
    """Long enough for a limit that is looked at now and then."""
    signal.sigtimedwait([signal.SIGUSR2], seconds)


def fork_bomb(given: dict[str, Any]) -> str:
    """Doubles until it has as many as it may, each child alive while it counts."""
    made: list[int] = []
    reader, writer = os.pipe()
    try:
        for _ in range(300):
            pid = os.fork()
            if pid == 0:
                os.close(writer)
                os.read(reader, 1)  # until the parent's end is closed
                os._exit(0)
            made.append(pid)
    except OSError as error:
        _release(made, reader, writer)
        return f"{len(made)} processes, then {error.strerror}"
    _hold(given["hold_s"])
    _release(made, reader, writer)
    return f"{len(made)} processes"


def _release(made: list[int], reader: int, writer: int) -> None:
    os.close(reader)
    os.close(writer)
    for pid in made:
        os.waitpid(pid, 0)


def thread_bomb(given: dict[str, Any]) -> str:
    release = threading.Event()
    threads = [threading.Thread(target=release.wait) for _ in range(300)]
    started = 0
    try:
        for thread in threads:
            thread.start()
            started += 1
    except RuntimeError as error:
        release.set()
        return f"{started} threads, then {error}"
    _hold(given["hold_s"])
    release.set()
    return f"{started} threads"


def heap(given: dict[str, Any]) -> str:
    kept = [os.urandom(1) * (10 * MB) for _ in range(40)]
    _hold(given["hold_s"])
    return f"{sum(map(len, kept)) // MB} MB"


def heap_of_children(given: dict[str, Any]) -> str:
    """Each below any limit of a single process."""
    reader, writer = os.pipe()
    made = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            kept = os.urandom(1) * (50 * MB)
            os.read(reader, 1)
            os._exit(len(kept) % 2)
        made.append(pid)
    _hold(given["hold_s"])
    _release(made, reader, writer)
    return "400 MB"


def small_maps(given: dict[str, Any]) -> str:
    kept = []
    for _ in range(6_000):
        piece = mmap.mmap(-1, 65_536, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        piece.write(b"x" * 65_536)
        kept.append(piece)
    _hold(given["hold_s"])
    return f"{len(kept) * 65_536 // MB} MB"


def page_tables(given: dict[str, Any]) -> str:
    """One read in every two megabytes takes a page of the kernel's, and none of the process's."""
    stride, tables = 1 << 21, 60_000
    private, anonymous, no_reserve, no_huge_page = 2, 0x20, 0x4000, 15
    size = ctypes.c_size_t(stride * tables)
    start = libc.mmap(None, size, 1, private | anonymous | no_reserve, -1, ctypes.c_long(0))
    libc.madvise(ctypes.c_void_p(start), size, no_huge_page)
    for number in range(tables):
        ctypes.string_at(start + number * stride, 1)
    _hold(given["hold_s"])
    with open("/proc/self/status") as status:
        found = next(int(line.split()[1]) for line in status if line.startswith("VmPTE:"))
    libc.munmap(ctypes.c_void_p(start), size)
    return "more than 200 MB" if found * 1024 > 200 * MB else f"{found} kB"


def hidden_memory(given: dict[str, Any]) -> str:
    """Fill memory that belongs to no process and to no file system with a size."""
    written = 0
    try:
        fd = os.memfd_create("x")
        while written < 400 * MB:
            written += os.write(fd, bytes(MB))
    except OSError as error:
        return f"{written // MB} MB, then {error.strerror}"
    _hold(given["hold_s"])
    return f"{written // MB} MB"


def paged_out_memory(given: dict[str, Any]) -> str:
    """Written, and moved to disk at once if the machine has swap: resident sets do not show it."""
    page_out, pieces, piece = 21, 40, 10 << 20
    kept = []
    for _ in range(pieces):
        kept.append(mmap.mmap(-1, piece, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        kept[-1].write(os.urandom(1) * piece)
        with contextlib.suppress(OSError):
            kept[-1].madvise(page_out)
    _hold(given["hold_s"])
    return f"{10 * len(kept)} MB"


def _hold_objects(make: Callable[[], int], remove: Callable[[int], Any], count: int, hold_s: float) -> str:
    """Make that many objects of the kernel, which take 200 MB together, hold them, and remove them."""
    made: list[int] = []
    said = "200 MB"
    while len(made) < count:
        if (number := make()) < 0:
            said = f"{200 * len(made) // count} MB, then {os.strerror(ctypes.get_errno())}"
            break
        made.append(number)
    _hold_hidden(said, hold_s)
    for number in made:
        remove(number)
    return said


def memory_in_semaphores(given: dict[str, Any]) -> str:
    """A set of 32,000 takes 2 MB."""
    return _hold_objects(
        lambda: int(libc.semget(0, 32_000, 0o600)), lambda number: libc.semctl(number, 0, 0), 100, given["hold_s"]
    )


def memory_in_messages(given: dict[str, Any]) -> str:
    """A queue holds two messages of the largest size, 8 kB."""
    message, size = ctypes.create_string_buffer((1).to_bytes(8, "little") + bytes(8_192)), ctypes.c_size_t(8_192)

    def make() -> int:
        queue = int(libc.msgget(0, 0o600))
        if queue >= 0 and any(libc.msgsnd(queue, message, size, 0o4000) for _ in range(2)):
            libc.msgctl(queue, 0, None)
            return -1
        return queue

    return _hold_objects(make, lambda number: libc.msgctl(number, 0, None), 12_500, given["hold_s"])


def _fill(folder: str, hold_s: float) -> str:
    os.makedirs(folder, exist_ok=True)
    written = 0
    try:
        for number in range(100):
            with open(f"{folder}/{number}", "wb") as file:
                file.write(bytes(MB))
            written += 1
        _hold(hold_s)
    except OSError as error:
        return f"{written} MB, then {error.strerror}"
    finally:
        shutil.rmtree(folder)
    return f"{written} MB"


def fill_the_workspace(given: dict[str, Any]) -> str:
    return _fill("fill", given["hold_s"])


def fill_temporary_files(given: dict[str, Any]) -> str:
    return _fill(f"{os.environ['TMPDIR']}/fill", given["hold_s"])


def fill_shared_memory(given: dict[str, Any]) -> str:
    return _fill(f"/dev/shm/{given['name']}", given["hold_s"])


def one_large_file(given: dict[str, Any]) -> str:
    path = "large"
    try:
        with open(path, "wb") as file:
            file.truncate(10**12)
    except OSError as error:
        return f"nothing: {error.strerror}"
    finally:
        os.unlink(path)
    return "1 TB, sparse"


PIECE_MB, PIECES = 4, 15
"""Each file is below the limit of a single one."""


def _write_pieces(
    open_piece: Callable[[int], int], after: Callable[[int, int], None], pieces: int = PIECES, piece_mb: int = PIECE_MB
) -> str:
    written = 0
    try:
        for number in range(pieces):
            fd = open_piece(number)
            for _ in range(piece_mb):
                written += os.write(fd, bytes(MB))
            after(number, fd)
    except OSError as error:
        return f"{written // MB} MB, then {error.strerror}"
    return f"{written // MB} MB"


def _hold_hidden(said: str, hold_s: float) -> None:
    """Hold what was written until it is found; if writing was refused, nothing is beyond the limit."""
    if "then" not in said:
        _hold(hold_s)


def _create(name: str) -> int:
    return os.open(name, os.O_CREAT | os.O_RDWR, 0o600)


def hide_disk_in_unlinked_files(given: dict[str, Any]) -> str:
    said = _write_pieces(lambda number: _create(f"{number}"), lambda number, _: os.unlink(f"{number}"))
    _hold_hidden(said, given["hold_s"])
    return said


def hide_disk_in_unnamed_files(given: dict[str, Any]) -> str:
    said = _write_pieces(lambda _: os.open(".", os.O_TMPFILE | os.O_RDWR), lambda *_: None)
    _hold_hidden(said, given["hold_s"])
    return said


def hide_disk_from_all_who_trace(given: dict[str, Any]) -> str:
    """Descriptors of a process that cannot be traced are root's alone to see."""
    libc.prctl(4, 0, 0, 0, 0)
    return hide_disk_in_unlinked_files(given)


def hide_disk_below_a_long_path(given: dict[str, Any]) -> str:
    """Longer than any system call takes."""
    start = os.getcwd()
    name = "x" * 200
    for _ in range(30):
        os.mkdir(name)
        os.chdir(name)
    said = _write_pieces(lambda number: _create(f"{number}"), lambda _, fd: os.close(fd))
    _hold_hidden(said, given["hold_s"])
    for number in range(PIECES):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{number}")
    for _ in range(30):
        os.chdir("..")
        os.rmdir(name)
    os.chdir(start)
    return said


def hide_disk_in_a_closed_folder(given: dict[str, Any]) -> str:
    """Its mode lets no user in, not even its owner."""
    os.mkdir("closed")
    said = _write_pieces(lambda number: _create(f"closed/{number}"), lambda _, fd: os.close(fd))
    os.chmod("closed", 0)
    _hold_hidden(said, given["hold_s"])
    os.chmod("closed", 0o700)
    shutil.rmtree("closed")
    return said


def hide_disk_in_flight(given: dict[str, Any]) -> str:
    """In no process's table: sent through a socket and not received, which is in flight, too."""
    one, other = socket.socketpair()
    outer, kept = socket.socketpair()

    def send(number: int, fd: int) -> None:
        os.unlink(f"{number}")
        socket.send_fds(one, [b"x"], [fd])
        os.close(fd)

    said = _write_pieces(lambda number: _create(f"{number}"), send)
    socket.send_fds(outer, [b"x"], [other.fileno()])
    other.close()
    _hold_hidden(said, given["hold_s"])
    kept.close()
    return said


def hide_disk_in_memory(given: dict[str, Any]) -> str:
    """Mapped, and closed: a page of it keeps the whole file. Four are enough."""

    def keep(number: int, fd: int) -> None:
        libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
        os.unlink(f"{number}")
        os.close(fd)

    said = _write_pieces(lambda number: _create(f"{number}"), keep, pieces=4, piece_mb=15)
    _hold_hidden(said, given["hold_s"])
    return said


def use_up_inodes(given: dict[str, Any]) -> str:
    """A file without a byte takes memory of the kernel's all the same."""
    folder = given["folder"]
    os.makedirs(folder)
    made = 0
    try:
        for _ in range(200_000):
            os.close(os.open(f"{folder}/{made}", os.O_CREAT | os.O_WRONLY))
            made += 1
        _hold(given["hold_s"])
    except OSError as error:
        return f"{made} files, then {error.strerror}"
    finally:
        shutil.rmtree(folder)
    return f"{made} files"


def use_up_descriptors(given: dict[str, Any]) -> str:
    held = []
    try:
        for _ in range(3_000):
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        return f"{len(held)} files, then {error.strerror}"
    finally:
        for fd in held:
            os.close(fd)
    return f"{len(held)} files"


def spin(given: dict[str, Any]) -> str:
    """In four processes, each as long as it was told."""
    made = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            signal.alarm(100)
            while time.process_time() < given["spun_s"]:
                pass
            os._exit(0)
        made.append(pid)
    for pid in made:
        os.waitpid(pid, 0)
    return f"{4 * given['spun_s']} s of CPU time"


def flood_of_errors(given: dict[str, Any]) -> str:
    for _ in range(3_000):
        os.write(2, b"x" * 65_536)
    return "200 MB"


def leave_a_daemon(given: dict[str, Any]) -> str:
    """In a session of its own, without a parent, under a name that the host can see."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            libc.prctl(15, given["daemon"].encode(), 0, 0, 0)
            os.write(writer, b"x")
            signal.alarm(HELD_S)
            signal.pause()
        os._exit(0)
    os.wait()
    os.read(reader, 1)
    return "left"
