"""A command from a process that has imported it already: seconds less for each of some hundred commands.

`run` starts the server on first use; a command is a fork of it, with the caller's environment, folder and streams, and
from then on goes the way of the console script. All workers of pytest-xdist share one server, because its imports take
longer than most commands; it begins them at the third command, since a run of a few tests may have no more than two.
Start-up, interrupts and what differs between two interpreters are tested with the real command; SIGKILL of the real one
is in benchmarks/kill_resume.py.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import IO, Any, TextIO

GYMCP = Path(sys.executable).with_name("gymcp")
COMMAND = "gymcp.cli.main"
"""Module whose `main` is the console script."""
RUN_ID = "PYTEST_XDIST_TESTRUNUID"
"""Environment variable with the name of this run of the tests."""
FEW_COMMANDS = 2
"""First commands of a program that import their modules themselves: all modules together take the time of several."""
START_S = 60.0
"""Seconds in which another worker that has taken the address listens on it."""
_VERBS_AND_SUITES = ("gymcp.cli", "gymcp.envs.catalog", "gymcp.envs.suites")
_ON_DEMAND = (
    "anyio._backends._asyncio",
    "gymcp.agents.policies.engine.engine",
    "gymcp.agents.policies.local_model",
    "gymcp.agents.policies.tiny_model",
    "gymcp.mcp_servers.sandbox.docker.engine_client",
)
"""Modules that the command line imports for some arguments only, because they take long."""
_NEVER = ("__main__", "cluster.driver", "doctor_ray")
"""Ends of the names of modules that no fork may inherit: the last two import Ray, whose threads a fork has not."""
_WIRES: dict[int, socket.socket] = {}
"""Process id -> the wire to the server: a fork of a process needs a wire of its own."""
SERVERS: list[int] = []
"""Process id of the server, if this process or the one that it was forked from has started it."""
_CONNECTING = Lock()


class Command:
    """A command that was started. Its streams are those of the caller."""

    def __init__(self, answers: socket.socket) -> None:
        self.pid = int(answers.recv(100) or b"0")
        self._answers = answers

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end, at most so long; True if it has ended."""
        return bool(select.select([self._answers], [], [], seconds)[0])

    def wait(self, timeout_s: float) -> int:
        """The exit code, below 0 for a signal; asked once. Raises TimeoutExpired, after which it is killed."""
        with self._answers:
            if not self.ends_within(timeout_s):
                os.kill(self.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired("gymcp", timeout_s)
            return int(self._answers.recv(100))


def run(
    arguments: Sequence[str], *, cwd: Path | None, env: Mapping[str, str], timeout_s: float, program: str = COMMAND
) -> subprocess.CompletedProcess[str]:
    """The finished command. Raises TimeoutExpired, after which it is killed.

    `program`: the module whose `main` is the command; it reads `sys.argv`. Threads may run several at a time.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        command = start(arguments, out.fileno(), err.fileno(), cwd=cwd, env=env, program=program)
        status = command.wait(timeout_s)
        return subprocess.CompletedProcess([str(GYMCP), *arguments], status, _text(out), _text(err))


def start(
    arguments: Sequence[str], out: int, err: int, *, cwd: Path | None, env: Mapping[str, str], program: str = COMMAND
) -> Command:
    """Begin the command; it writes to the descriptors `out` and `err`."""
    request = json.dumps({"arguments": list(arguments), "cwd": str(cwd or Path.cwd()), "env": dict(env)}).encode()
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with tempfile.TemporaryFile() as asked, other:
        asked.write(request)
        asked.seek(0)
        fds = array.array("i", [other.fileno(), asked.fileno(), 0, out, err])
        _wire().sendmsg([program.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    return Command(own)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


def _wire() -> socket.socket:
    with _CONNECTING:
        if os.getpid() not in _WIRES:
            _WIRES[os.getpid()] = _connect()
        return _WIRES[os.getpid()]


def get_run_id() -> str:
    """Name of this run of the tests, which all its workers know. A program that asks the same server needs it."""
    return os.environ.get(RUN_ID, str(os.getpid()))


def _connect() -> socket.socket:
    """A wire to the server of this run of the tests, which is started if nobody has done so."""
    address = f"\0gymcp-tests-{get_run_id()}"  # no file is left of it
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError:  # another worker has it
            server, fonts = None, ""
        else:
            listener.listen(64)
            server, fonts = _start_server(listener)
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    deadline = time.monotonic() + START_S
    while wire.connect_ex(address) != 0:
        if time.monotonic() > deadline:
            raise TimeoutError("the server of commands does not listen")
        time.sleep(0.01)
    atexit.register(_end, os.getpid(), wire, server, fonts)
    return wire


def _start_server(listener: socket.socket) -> tuple[subprocess.Popen[bytes], str]:
    """The server's process, and a folder for matplotlib's list of fonts, which else every fork makes and removes."""
    fonts = tempfile.mkdtemp()
    command = [sys.executable, __file__, str(listener.fileno())]
    env = {**os.environ, "MPLCONFIGDIR": fonts}
    server = subprocess.Popen(command, pass_fds=[listener.fileno()], env=env)
    SERVERS.append(server.pid)
    return server, fonts


def _end(pid: int, wire: socket.socket, server: subprocess.Popen[bytes] | None, fonts: str) -> None:
    if os.getpid() != pid:  # a fork inherits the exit handlers
        return
    wire.close()
    if server is not None:
        server.wait()  # for the wires of all workers
        shutil.rmtree(fonts, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------- the server


class Server:
    """Forks commands for all that are connected, until the last of them is gone."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._wires: list[socket.socket] = []
        self._running: dict[int, tuple[int, int]] = {}
        """Descriptor of a command's process -> its id, and the descriptor where its end is told."""
        self._begun: Counter[str] = Counter()
        """Program -> its commands so far."""

    def serve(self) -> str:
        """Return in each command's own process, with the name of its program."""
        while True:
            watched: list[Any] = [self._listener, *self._wires, *self._running]
            for ready in select.select(watched, [], [])[0]:
                if ready is self._listener:
                    self._accept()
                elif isinstance(ready, int):
                    self._tell_end(ready)
                elif program := self._fork(ready):
                    return program

    def _accept(self) -> None:
        wire, _ = self._listener.accept()
        peer = wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", peer)[1] == os.getuid():  # everyone can connect to such an address
            self._wires.append(wire)
        else:
            wire.close()

    def _tell_end(self, process: int) -> None:
        pid, answers = self._running.pop(process)
        _tell(answers, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os.close(answers)
        os.close(process)

    def _fork(self, wire: socket.socket) -> str:
        """The program's name in the process of the new command; empty in the server."""
        message, fds, _, _ = socket.recv_fds(wire, 1000, 5)
        if not message:
            self._wires.remove(wire)
            wire.close()
            if not self._wires:
                os._exit(0)
            return ""
        program = message.decode()
        self._begun[program] += 1
        if self._begun[program] > FEW_COMMANDS:
            _import_for_all(program)
        pid = os.fork()
        if pid == 0:
            self._close()
            _become_command(fds)
            return program
        answers, *others = fds
        _tell(answers, pid)
        self._running[os.pidfd_open(pid)] = pid, answers
        for fd in others:
            os.close(fd)
        return ""

    def _close(self) -> None:
        for each in (self._listener, *self._wires):
            each.close()
        for process, (_, answers) in self._running.items():
            os.close(process)
            os.close(answers)


def _tell(answers: int, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        os.write(answers, b"%d" % number)


def _become_command(fds: list[int]) -> None:
    answers, asked, *streams = fds
    os.close(answers)
    with os.fdopen(asked, "rb") as file:
        request = json.load(file)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout = _open_stream(1, sys.stdout)
    sys.stderr = _open_stream(2, sys.stderr)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [str(GYMCP), *request["arguments"]]


def _open_stream(number: int, before: TextIO) -> TextIO:
    """The command's own stream: that of the server may be a file, which can be sought in, and this one a pipe."""
    buffering = 1 if number == 2 else -1
    return os.fdopen(number, "w", buffering, before.encoding, before.errors, closefd=False)


@functools.cache
def _import_for_all(program: str) -> None:
    """Import the program in the server, if it can be; and what a fork shares is not looked at for garbage."""
    gc.disable()
    with contextlib.suppress(Exception):  # the command itself will say it
        import_program(program)
    gc.freeze()
    gc.enable()


def import_program(name: str) -> ModuleType:
    """The module, after what it imports later: the verbs of the command line, the suites, the models of policies."""
    if name == COMMAND:
        found = [
            module.name
            for package in map(importlib.import_module, _VERBS_AND_SUITES)
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        ]
        for module in (*found, *_ON_DEMAND):
            if not module.endswith(_NEVER):
                with contextlib.suppress(ModuleNotFoundError):  # without the extra `train` a verb says so itself
                    importlib.import_module(module)
    return importlib.import_module(name)


def leave(code: list[int]) -> None:
    """End this process without tearing down its thousands of modules, which would first copy all of their memory."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            stream.flush()
    os._exit(code[-1])


if __name__ == "__main__":
    codes = [1]  # the exit code of an exception
    atexit.register(leave, codes)  # the first that is registered runs last
    program = importlib.import_module(Server(socket.socket(fileno=int(sys.argv[1]))).serve())
    try:
        sys.exit(program.main())
    except SystemExit as ended:
        codes.append(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise
