"""The gymcp command from a process that has imported it already: a second less for each of some hundred commands.

`run` starts the server of this process on first use; a command is a fork of it, with the caller's environment, folder
and streams, and from then on goes the way of the console script. Signals, start-up and what differs between two
interpreters are tested with the real command.
"""

from __future__ import annotations

import array
import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

GYMCP = Path(sys.executable).with_name("gymcp")
WORK = (
    *(
        f"evaluation.{name}"
        for name in ("compare", "eval_run", "grade", "judge_run", "report", "stress", "suites", "view")
    ),
    *(f"machine.{name}" for name in ("clean", "doctor", "sandbox")),
    *(f"servers.{name}" for name in ("check", "new", "servers", "tools")),
    *(f"training.{name}" for name in ("export", "serve")),
)
"""Modules that the verbs import when they run."""
_STARTED: dict[int, socket.socket] = {}
"""Process id -> the wire to its server: a fork of a process starts a server of its own."""


def run(
    arguments: Sequence[str], *, cwd: Path | None, env: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """The finished command. Raises TimeoutExpired, after which it is killed."""
    request = json.dumps({"arguments": list(arguments), "cwd": str(cwd or Path.cwd()), "env": dict(env)}).encode()
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        asked.write(request)
        asked.seek(0)
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with own:
            with other:
                _send(_server(), [other.fileno(), asked.fileno(), 0, out.fileno(), err.fileno()])
            pid = int(own.recv(100) or b"0")
            if not select.select([own], [], [], timeout_s)[0]:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout_s)
            status = int(own.recv(100))
        return subprocess.CompletedProcess([str(GYMCP), *arguments], status, _text(out), _text(err))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


def _server() -> socket.socket:
    if os.getpid() not in _STARTED:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            process = subprocess.Popen([sys.executable, __file__, str(other.fileno())], pass_fds=[other.fileno()])
        _STARTED[os.getpid()] = own
        atexit.register(_end, os.getpid(), own, process)
    return _STARTED[os.getpid()]


def _end(pid: int, own: socket.socket, process: subprocess.Popen[bytes]) -> None:
    if os.getpid() == pid:  # a fork inherits the exit handlers
        own.close()
        process.wait()


def _send(wire: socket.socket, fds: list[int]) -> None:
    wire.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


# ------------------------------------------------------------------------------------------------------- the server


def main() -> None:
    """Returns in each command's own process, which then runs it; ends with the wire."""
    wire = socket.socket(fileno=int(sys.argv[1]))
    for name in ("app", *WORK):
        importlib.import_module(f"gymcp.cli.{name}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for commands
    while True:
        message, fds, _, _ = socket.recv_fds(wire, 1, 5)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            wire.close()
            break
        for fd in fds:
            os.close(fd)
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


if __name__ == "__main__":
    main()
    sys.exit(importlib.import_module("gymcp.cli.main").main())
