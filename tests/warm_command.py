"""A command from a process that has imported it already: seconds less for each of some hundred commands.

`run` starts the server of a program on first use, one for all workers of pytest-xdist; a command is a fork of it, with
the caller's environment, folder and streams, and from then on goes the way of the console script. Signals, start-up and
what differs between two interpreters are tested with the real command.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import IO

GYMCP = Path(sys.executable).with_name("gymcp")
COMMAND = "gymcp.cli.main"
"""Module whose `main` is the console script."""
_ON_DEMAND = (
    "gymcp.agents.policies.engine.engine",
    "gymcp.agents.policies.local_model",
    "gymcp.agents.policies.tiny_model",
)
"""Modules that the command line imports for some arguments only, because they take seconds."""
_WIRES: dict[tuple[int, str], socket.socket] = {}
"""Process id and program -> the wire to its server: a fork of a process has wires of its own."""
_CONNECTING = Lock()


def run(
    arguments: Sequence[str], *, cwd: Path | None, env: Mapping[str, str], timeout_s: float, program: str = COMMAND
) -> subprocess.CompletedProcess[str]:
    """The finished command. Raises TimeoutExpired, after which it is killed.

    `program`: the module whose `main` is the command; it reads `sys.argv`. Threads may run several at a time.
    """
    request = json.dumps({"arguments": list(arguments), "cwd": str(cwd or Path.cwd()), "env": dict(env)}).encode()
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        asked.write(request)
        asked.seek(0)
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with own:
            with other:
                _send(_server(program), [other.fileno(), asked.fileno(), 0, out.fileno(), err.fileno()])
            pid = int(own.recv(100) or b"0")
            if not select.select([own], [], [], timeout_s)[0]:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout_s)
            status = int(own.recv(100))
        return subprocess.CompletedProcess([str(GYMCP), *arguments], status, _text(out), _text(err))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


def _server(program: str) -> socket.socket:
    key = os.getpid(), program
    with _CONNECTING:
        if key not in _WIRES:
            _WIRES[key] = _connect(program)
        return _WIRES[key]


def _connect(program: str) -> socket.socket:
    """A wire to the server, which is started if it is not there."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
    name = f"\0gymcp-warm-{run}-{program}"
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two workers one starts it
        try:
            wire.connect(name)
        except ConnectionRefusedError:
            _start(name, program)
            wire.connect(name)
    return wire


def _start(name: str, program: str) -> None:
    fonts = tempfile.mkdtemp()  # of matplotlib, which else makes one that every fork removes at its end
    env = {**os.environ, "MPLCONFIGDIR": fonts}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(name)
        listener.listen()
        command = [sys.executable, __file__, str(listener.fileno()), program, fonts]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()], env=env)
    atexit.register(_end, os.getpid(), process)


def _end(pid: int, process: subprocess.Popen[bytes]) -> None:
    """Wait for the server, which ends with the last wire."""
    if os.getpid() == pid:  # a fork inherits the exit handlers
        for wire in _WIRES.values():
            wire.close()
        process.wait()


def _send(wire: socket.socket, fds: list[int]) -> None:
    wire.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


# ------------------------------------------------------------------------------------------------------- the server


def main(listener: socket.socket, fonts: str) -> None:
    """Returns in each command's own process, which then runs it; ends with the last wire. Removes `fonts` then."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for commands
    wires = [listener.accept()[0]]
    while True:
        wire = select.select([listener, *wires], [], [])[0][0]
        if wire is listener:
            wires.append(listener.accept()[0])
            continue
        message, fds, _, _ = socket.recv_fds(wire, 1, 5)
        if not message:
            wires.remove(wire)
            wire.close()
        elif os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (listener, *wires):
                each.close()
            break
        for fd in fds:
            os.close(fd)
        if not wires:
            shutil.rmtree(fonts, ignore_errors=True)
            os._exit(0)
    answer, asked, *streams = fds
    command = os.fork()
    if command != 0:
        for stream in streams:
            os.close(stream)
        os.write(answer, b"%d" % command)
        os.write(answer, b"%d" % os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]))
        os._exit(0)
    os.close(answer)
    with os.fdopen(asked, "rb") as file:
        request = json.load(file)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [str(GYMCP), *request["arguments"]]


def import_program(name: str) -> ModuleType:
    """The module, after what it imports later: the verbs of the command line and the models of policies."""
    if name == COMMAND:
        verbs = importlib.import_module("gymcp.cli")
        found = [module.name for module in pkgutil.walk_packages(verbs.__path__, "gymcp.cli.")]
        for module in (*found, *_ON_DEMAND):
            if not module.endswith("__main__"):
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
    codes = [1]  # of an exception
    atexit.register(leave, codes)  # the first that is registered runs last
    program = import_program(sys.argv[2])
    gc.freeze()
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[3])
    try:
        sys.exit(program.main())
    except SystemExit as ended:
        codes.append(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise
