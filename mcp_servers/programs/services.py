"""Starts services inside the sandbox, waits until they are ready, and then becomes the server.

Arguments: the services as JSON, with the fields of `gymcp.mcp_servers.services.Service`; then the server's command. The
services are started in their order, each once the one before is ready. A keeper process, which is no child of the
server, copies what they print to standard error, each line after the service's name in brackets.

If a service is not ready in time, the server is never started: the last line of standard error says why, and the
status is `EXIT_STATUS`. If a service ends later, the keeper says so and kills the server, whose answers would otherwise
be taken for the agent's doing.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, NoReturn

EXIT_STATUS = 71
POLL_S = 0.02
COMMAND_POLL_S = 0.1
"""Seconds between two runs of a command that checks whether a service is ready."""
LAST_LINES = 5
"""Lines of a service that the reason of its failure quotes."""
MAX_LINE_BYTES = 2_000
DRAIN_S = 1.0
"""Seconds to wait for the last output of a service that has ended."""
READY = b"ready"

Options = dict[str, Any]


class Failed(Exception):
    """A service did not become ready; the message gives the reason."""


class Service:
    """One running service."""

    def __init__(self, options: Options) -> None:
        self.name: str = options["name"]
        self._options = options
        self._tail: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        argv = [sys.executable if options["argv"][0] == "python3" else options["argv"][0], *options["argv"][1:]]
        try:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **options["env"]},
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(f"service '{self.name}' cannot be started: {argv[0]}: {error.strerror}") from None
        self._pump = threading.Thread(target=self._copy_output, daemon=True)
        self._pump.start()

    def wait_until_ready(self) -> None:
        """Return once the service is ready. Raises Failed if it ends before, or takes too long."""
        timeout_s = self._options["ready_timeout_s"]
        deadline = time.monotonic() + timeout_s
        kind, _, argument = self._options["ready"].partition(":")
        while True:
            if (status := self.process.poll()) is not None:
                raise Failed(f"service '{self.name}' ended (exit status {status}) before it was ready{self._quote()}")
            if _is_ready(kind, argument, deadline):
                return
            if time.monotonic() > deadline:
                why = f"did not become ready within {timeout_s:g} s ({self._options['ready']})"
                raise Failed(f"service '{self.name}' {why}{self._quote()}")
            time.sleep(COMMAND_POLL_S if kind == "command" else POLL_S)

    def wait_for_end(self, server: int) -> None:
        """Kill the server when the service ends."""
        status = self.process.wait()
        _say(f"service '{self.name}' ended (exit status {status}) while the server was running{self._quote()}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)

    def _copy_output(self) -> None:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline(MAX_LINE_BYTES):
            text = line.decode("utf-8", "replace").rstrip("\n")
            self._tail.append(text)
            _say(f"[{self.name}] {text}")

    def _quote(self) -> str:
        self._pump.join(DRAIN_S if self.process.poll() is not None else 0)
        return f": {' | '.join(self._tail)}" if self._tail else " and said nothing"


def _is_ready(kind: str, argument: str, deadline: float) -> bool:
    if kind == "file":
        return os.path.exists(argument)  # noqa: PTH110
    if kind == "command":
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            left = max(deadline - time.monotonic(), POLL_S)
            nothing = subprocess.DEVNULL
            done = subprocess.run(
                shlex.split(argument), stdin=nothing, stdout=nothing, stderr=nothing, timeout=left, check=False
            )
            return done.returncode == 0
        return False
    for host in ("127.0.0.1", "::1"):
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(argument)), timeout=1.0).close()
            return True
    return False


def keep(options: list[Options], server: int, report: int) -> NoReturn:
    """Start the services, report to the server's process whether they are ready, and watch them until the end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # the server's streams are not the keeper's
    os.dup2(nothing, 1)
    running = []
    try:
        for each in options:
            service = Service(each)
            running.append(service)
            service.wait_until_ready()
    except Failed as failure:
        os.write(report, str(failure).encode())
        os._exit(EXIT_STATUS)
    os.write(report, READY)
    os.close(report)
    watchers = [threading.Thread(target=service.wait_for_end, args=(server,)) for service in running]
    for watcher in watchers:
        watcher.start()
    for watcher in watchers:
        watcher.join()
    os._exit(0)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, line.encode("utf-8", "replace") + b"\n")


def main() -> None:
    options, argv = json.loads(sys.argv[1]), sys.argv[2:]
    if argv[0] == "python3":
        argv[0] = sys.executable
    server = os.getpid()
    answer, report = os.pipe()
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            os.close(answer)
            keep(options, server, report)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(report)
    with open(answer, "rb") as file:  # noqa: PTH123
        said = file.read()
    if said != READY:
        _say(said.decode("utf-8", "replace") or "the keeper of the services has ended")
        sys.exit(EXIT_STATUS)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        _say(f"the server cannot be started: {argv[0]}: {error.strerror}")
        sys.exit(EXIT_STATUS)
