"""Costs of mends that were tried for what docs/security.md says is not fixed, and what each of them gains.

Nothing outside of this process's children is changed: files are in a temporary folder, mounts in namespaces that end.
What a machine cannot do (no user namespaces, no node) is left out with a line on standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from counter import Counter
from report_table import Result, against, options, show

from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sandbox.bwrap_program import find_bwrap
from gymcp.mcp_servers.sandbox.proctree import find_roots, read_processes, sum_by_root
from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.snapshots.process_fork import fork_session
from gymcp.types import ToolCall

FEWER_FILES = 256
"""Open files of a server, as tried in place of the default."""
CALLS = 20
"""Calls of the episode that is copied or replayed."""
MASKED = ("uptime", "loadavg", "meminfo", "cpuinfo", "stat", "version", "vmstat", "zoneinfo", "interrupts", "softirqs")
"""Files of /proc that a started server can read. Ten, so that the cost of one mount can be told from noise."""
COPIED_FILES, COPIED_BYTES = 1_000, 10_000
"""Number and size of the files of a program of others, as it is copied where a mount would tell its path."""

PIPE = """
import fcntl, os, sys
size, reader, writer = int(sys.argv[1]), *os.pipe()
fcntl.fcntl(writer, 1031, size)
if os.fork() == 0:
    os.close(reader)
    for _ in range(4_000): os.write(writer, bytes(65_536))
    os._exit(0)
os.close(writer)
before = sum(os.times()[:4])
while os.read(reader, 65_536): pass
os.wait()
print(4_000 * 65_536 / (sum(os.times()[:4]) - before) / 1e6)
"""
SOCKETS = """
import contextlib, resource, socket, sys
files = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
resource.setrlimit(resource.RLIMIT_AS, (200_000_000, 200_000_000))
sockets, held = [], 0
with contextlib.suppress(OSError):
    while True:
        sockets += socket.socketpair()
for each in sockets:
    each.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            held += each.send(bytes(32_768))
print(held / 1e6)
"""
CPU_LIMIT = """
import os, resource, time
resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
for _ in range(5):
    while time.process_time() < 0.5: pass
    if (child := os.fork()) != 0:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(5 * 0.5)
"""
NODE = """
const fs = require('fs'), want = 300
Promise.allSettled([...Array(want)].map(() => fs.promises.open('/dev/null')))
  .then(all => console.log(all.filter(one => one.status === 'fulfilled').length))
"""
OVERLAY = """
import ctypes, json, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def mount(kind, place, options):
    if libc.mount(b"none", place.encode(), kind, 0, options.encode()) != 0:
        sys.exit(f"mount {kind.decode()}: {os.strerror(ctypes.get_errno())}")
folder, names = sys.argv[1], [entry.path for entry in os.scandir("/usr/bin") if entry.is_file(follow_symlinks=False)]
def opens(paths):
    best = []
    for _ in range(20):
        began = time.perf_counter()
        for path in paths: os.close(os.open(path, os.O_RDONLY))
        best.append((time.perf_counter() - began) / len(paths) * 1e6)
    return min(best)
mount(b"tmpfs", folder, "")
direct, mounts = opens(names), []
for number in range(10):
    for name in ("upper", "work", "seen"): os.makedirs(f"{folder}/{number}/{name}")
    here = f"{folder}/{number}"
    options = f"lowerdir=/usr/bin,upperdir={here}/upper,workdir={here}/work"
    began = time.perf_counter()
    mount(b"overlay", f"{here}/seen", options)
    mounts.append((time.perf_counter() - began) * 1e3)
seen = [f"{folder}/0/seen/{os.path.basename(name)}" for name in names]
print(json.dumps({"mount_ms": sorted(mounts)[5], "direct_us": direct, "overlay_us": opens(seen)}))
"""


def main() -> None:
    args = options(__doc__, "a third of the repetitions").parse_args()
    repetitions = 10 if args.quick else 30
    parts: list[Callable[[], list[Result]]] = [
        measure_pipes,
        measure_sockets,
        measure_node,
        measure_cpu_limit,
        measure_overlay,
        lambda: measure_masks(repetitions),
        lambda: measure_copying(repetitions // 5),
        measure_credentials,
        lambda: asyncio.run(measure_copies(repetitions)),
        lambda: measure_looks(repetitions),
    ]
    results: list[Result] = []
    for part in parts:
        try:
            results += part()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"mend_costs: left out: {error}", file=sys.stderr)
    show("mend_costs", results, as_json=args.json)


def ask(code: str, *words: str, before: tuple[str, ...] = ()) -> str:
    """Output of the Python code, run in a process of its own. Raises CalledProcessError."""
    argv = [*before, sys.executable, "-I", "-S", "-c", code, *words]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout


def measure_pipes() -> list[Result]:
    """Megabytes through a pipe per second of CPU time, also with the user's quota for pipes used up; best of five."""
    fastest = {size: max(float(ask(PIPE, str(size))) for _ in range(5)) for size in (65_536, 8_192)}
    full = Result(metric="pipe of 64 kB", value=fastest[65_536], unit="MB/CPU s")
    return [full, against("pipe of 8 kB, when the quota is used up", fastest[8_192], "MB/CPU s", full)]


def measure_sockets() -> list[Result]:
    """Kernel memory that one process holds in sockets, below an address space of 200 MB."""
    files = Limits().open_files
    many = Result(metric=f"unread in the sockets of {files} files", value=float(ask(SOCKETS, str(files))), unit="MB")
    fewer = float(ask(SOCKETS, str(FEWER_FILES)))
    return [many, against(f"unread in the sockets of {FEWER_FILES} files", fewer, "MB", many)]


def measure_node() -> list[Result]:
    """Files out of 300 that a node program can open at once with fewer open files: what the limit costs."""
    if shutil.which("node") is None:
        raise OSError("there is no node")
    shell = ["sh", "-c", f'ulimit -n {FEWER_FILES}; exec node -e "$0"', NODE]
    said = subprocess.run(shell, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [Result(metric=f"files of 300 that node opens at once with {FEWER_FILES}", value=float(said), unit="files")]


def measure_cpu_limit() -> list[Result]:
    """CPU time of a process that forks on and on, below a limit of 1 s of the kernel's."""
    used = float(ask(CPU_LIMIT))
    return [Result(metric="CPU time below RLIMIT_CPU of 1 s, by forks", value=used, unit="s")]


def measure_overlay() -> list[Result]:
    """An overlay over a folder of the host, whose inodes are then the sandbox's own."""
    with tempfile.TemporaryDirectory(prefix="gymcp-mend-") as folder:
        private = ("unshare", "--user", "--map-root-user", "--mount")
        said = json.loads(ask(OVERLAY, folder, before=private))
    direct = Result(metric="open of a file", value=said["direct_us"], unit="us")
    return [
        Result(metric="mount of an overlay", value=said["mount_ms"], unit="ms"),
        direct,
        against("open of a file through an overlay", said["overlay_us"], "us", direct),
    ]


def measure_masks(repetitions: int) -> list[Result]:
    """A start of bubblewrap with ten more masks in /proc, divided by ten."""
    binary = find_bwrap()
    if binary is None:
        raise OSError("there is no bubblewrap")
    plain = [binary, "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    masks = [word for name in MASKED for word in ("--ro-bind", "/dev/null", f"/proc/{name}")]
    took_ms: dict[int, list[float]] = {0: [], len(MASKED): []}
    for _ in range(repetitions):
        for number, more in ((0, []), (len(MASKED), masks)):
            began = time.perf_counter()
            subprocess.run([*plain, *more, "true"], check=True)
            took_ms[number].append((time.perf_counter() - began) * 1e3)
    without, with_all = (statistics.median(took) for took in took_ms.values())
    start = Result(metric="start of bubblewrap", value=without, unit="ms")
    return [start, against("mask over one file of /proc", (with_all - without) / len(MASKED), "ms", start)]


def measure_copying(repetitions: int) -> list[Result]:
    """A copy of a program in memory: a mount of it would not tell where the program lies."""
    with tempfile.TemporaryDirectory(prefix="gymcp-mend-", dir="/dev/shm") as made:
        source = Path(made, "program")
        source.mkdir()
        for number in range(COPIED_FILES):
            (source / str(number)).write_bytes(bytes(COPIED_BYTES))
        took = []
        for number in range(max(1, repetitions)):
            began = time.perf_counter()
            shutil.copytree(source, Path(made, f"copy-{number}"))
            took.append((time.perf_counter() - began) * 1e3)
    what = f"copy of {COPIED_FILES} files, {COPIED_FILES * COPIED_BYTES // 1_000_000} MB"
    return [Result(metric=what, value=statistics.median(took), unit="ms")]


def measure_credentials(rounds: int = 10) -> list[Result]:
    """A message of a server, read with and without the kernel's word for which process has sent it; the best round."""
    took: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for named, each in took.items():
            each.append(_message_us(named=named))
    plain = Result(metric="message read", value=min(took[False]), unit="us")
    return [plain, against("message read with its sender's process", min(took[True]), "us", plain)]


def _message_us(*, named: bool, count: int = 2_000) -> float:
    reader, writer = socket.socketpair()
    with reader, writer:
        if named:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        space, message = socket.CMSG_SPACE(12), bytes(300)
        spent = 0.0
        for _ in range(count):
            writer.send(message)
            began = time.perf_counter()
            if named:
                reader.recvmsg(65_536, space)
            else:
                reader.recv(65_536)
            spent += time.perf_counter() - began
    return spent / count * 1e6


async def measure_copies(repetitions: int) -> list[Result]:
    """A copy of a live server by fork, and one made by a new server that gets the same calls."""
    forked, replayed = [], []
    spec = native_server("counter", Counter, start="fork")

    async def play(session: ToolSession) -> None:
        for _ in range(CALLS):
            await session.call_tool(ToolCall(id="", name="add"), {"number": 1}, timeout_s=60.0)

    async with (
        open_warm_sandbox(get_sandbox("bwrap")) as sandbox,
        open_session(spec, sandbox, initial_state={}, seed=0) as origin,
    ):
        await play(origin)
        for _ in range(repetitions):
            began = time.perf_counter()
            (copy,) = await fork_session(origin, 1)
            async with copy.open():
                forked.append((time.perf_counter() - began) * 1e3)
            began = time.perf_counter()
            async with open_session(spec, sandbox, initial_state={}, seed=0) as other:
                await play(other)
                replayed.append((time.perf_counter() - began) * 1e3)
    by_fork = Result(metric="copy by fork", value=statistics.median(forked), unit="ms")
    return [by_fork, against(f"copy by replay of {CALLS} calls", statistics.median(replayed), "ms", by_fork)]


def measure_looks(repetitions: int) -> list[Result]:
    """One look of the watchdog at all processes, which a fork server without a cgroup gets four times a second."""
    took = []
    for _ in range(repetitions):
        began = time.process_time()
        processes = read_processes()
        sum_by_root(processes, find_roots(processes, {os.getpid()}, {}))
        took.append((time.process_time() - began) * 1e3)
    return [
        Result(metric=f"look of the watchdog at {len(processes)} processes", value=statistics.median(took), unit="ms")
    ]


if __name__ == "__main__":
    main()
