"""Containers whose server runs already, made while others serve: taking one costs a millisecond instead of a start.

A spare belongs to one exact `Launch`, serves one episode, and is thrown away; none goes back. Spares are made from the
second start of a launch on, at most as many as are in use, and end when none has been wanted for a while, or with the
process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from gymcp.errors import GymcpError
from gymcp.mcp_servers.sandbox.docker.container import Container, State, discard, look, start
from gymcp.mcp_servers.sandbox.docker.engine_api import EngineError
from gymcp.mcp_servers.sandbox.docker.reaper import start_reaper
from gymcp.mcp_servers.sandbox.spec import Launch
from gymcp.process_owner import owner

SPARES = 4
"""At most, per launch."""
_IDLE_S = 60.0
_AT_ONCE = 8
"""Requests to the engine at a time; on two cores it makes eight containers a second however many are asked for."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Shelf:
    """One launch's."""

    launch: Launch
    spares: deque[Container] = field(default_factory=deque)
    taken: int = 0
    """Since the process began."""
    in_use: int = 0
    starting: int = 0
    last_taken: float = 0.0


class Pool:
    """One per process; may be used from any thread."""

    def __init__(self, *, spares: int = SPARES, idle_s: float = _IDLE_S) -> None:
        self._init = True
        self._spares = spares
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._shelves: dict[str, _Shelf] = {}
        self._workers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="gymcp-docker")
        self._making: list[Future[None]] = []
        self._reaper: subprocess.Popen[bytes] | None = None
        self._expiry: threading.Timer | None = None
        self._closed = False

    @property
    def workers(self) -> ThreadPoolExecutor:
        """Where requests to the engine are made, off the event loop."""
        return self._workers

    @property
    def reaper_pid(self) -> int | None:
        return self._reaper.pid if self._reaper is not None else None

    def take(self, launch: Launch) -> tuple[Container, State]:
        """A container of this launch that nobody has used, and nobody else will. Raises what `container.start` does."""
        self._watch_over()
        if launch.workspace is not None:  # each has its own: nothing to make ahead
            return self._started(launch)
        with self._lock:
            shelf = self._shelves.setdefault(_key(launch), _Shelf(launch=launch))
            shelf.taken += 1
            shelf.in_use += 1
            shelf.last_taken = time.monotonic()
        try:
            found = self._fresh_spare(shelf)
            if found is None:
                found = self._started(launch)
        except BaseException:
            with self._lock:
                shelf.in_use -= 1
            raise
        self._refill(shelf)
        return found

    def give_back(self, launch: Launch, container: Container) -> None:
        """Throws it away. Raises EngineError."""
        with self._lock:
            if (shelf := self._shelves.get(_key(launch))) is not None and launch.workspace is None:
                shelf.in_use -= 1
        discard(container)

    def wait_for_spares(self) -> None:
        """Returns when those under way are made."""
        wait(list(self._making))

    def _started(self, launch: Launch) -> tuple[Container, State]:
        try:
            made = start(launch, init=self._init)
        except EngineError as error:
            if not (self._init and "docker-init" in str(error)):
                raise
            self._init = False  # an engine that came without it: nobody reaps the orphans of servers
            made = start(launch, init=False)
        try:
            return made, look(made.id)
        except EngineError:
            discard(made)
            raise

    def _fresh_spare(self, shelf: _Shelf) -> tuple[Container, State] | None:
        while True:
            with self._lock:
                if not shelf.spares:
                    return None
                spare = shelf.spares.popleft()
            with contextlib.suppress(EngineError):
                state = look(spare.id)
                if state.running and not _has_ended(spare.streams):
                    return spare, state
            _try(discard, spare)

    def _refill(self, shelf: _Shelf) -> None:
        with self._lock:
            if self._closed or shelf.taken < 2:
                return
            self._making = [future for future in self._making if not future.done()]
            wanted = min(self._spares, shelf.in_use) - len(shelf.spares) - shelf.starting
            for _ in range(wanted):
                shelf.starting += 1
                self._making.append(self._workers.submit(self._make_spare, shelf))

    def _make_spare(self, shelf: _Shelf) -> None:
        made: Container | None = None
        try:
            if not self._closed:
                made, _ = self._started(shelf.launch)
        except (GymcpError, OSError) as error:
            log.warning("a spare container could not be made: %s", error)  # whoever needs one tries again, and says so
        with self._lock:
            shelf.starting -= 1
            keep = made is not None and not self._closed
            if made is not None and keep:
                shelf.spares.append(made)
                self._arm()
        if made is not None and not keep:
            _try(discard, made)

    def _arm(self) -> None:
        """Under the lock."""
        if self._expiry is None:
            self._expiry = threading.Timer(self._idle_s, self._expire)
            self._expiry.daemon = True
            self._expiry.start()

    def _expire(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._expiry = None
            idle = [shelf for shelf in self._shelves.values() if now - shelf.last_taken >= self._idle_s]
            found = [spare for shelf in idle for spare in shelf.spares]
            for shelf in idle:
                shelf.spares.clear()
            if any(shelf.spares for shelf in self._shelves.values()):
                self._arm()
        for spare in found:
            _try(discard, spare)

    def _watch_over(self) -> None:
        with self._lock:
            if self._reaper is None:
                self._reaper = start_reaper(owner())

    def close(self, of_process: int | None = None) -> None:
        """Removes the spares; containers in use are left to their users."""
        if of_process not in (None, os.getpid()):  # a fork inherits the exit handlers
            return
        with self._lock:
            self._closed = True
            found = [spare for shelf in self._shelves.values() for spare in shelf.spares]
            self._shelves.clear()
            if self._expiry is not None:
                self._expiry.cancel()
                self._expiry = None
        for spare in found:
            _try(discard, spare)
        self._workers.shutdown()
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.communicate()
            self._reaper = None


def pool() -> Pool:
    """This process's."""
    return _pool_of(os.getpid())


@functools.cache
def _pool_of(_pid: int) -> Pool:
    """A fork must not take its parent's spares."""
    made = Pool()
    atexit.register(made.close, os.getpid())
    return made


def _key(launch: Launch) -> str:
    return repr(replace(launch, env=dict(sorted(launch.env.items()))))


def _has_ended(streams: socket.socket) -> bool:
    """True at the end of the stream; a server that has said something already has not ended."""
    try:
        return streams.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def _try(act: Callable[[Container], None], container: Container) -> None:
    try:
        act(container)
    except EngineError as error:
        log.warning("container %s is left to `gymcp clean`: %s", container.id[:12], error)
