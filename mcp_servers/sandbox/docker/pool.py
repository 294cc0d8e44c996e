"""Warm containers, whose server runs already: taking one costs a millisecond instead of a start.

A warm container belongs to one exact `Launch`, serves one episode, and is discarded; none is used again. The pool fills
from the second start of a launch on, with at most as many warm containers as are in use. They end after a while without
use, or with the process.
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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from gymcp.errors import GymcpError
from gymcp.mcp_servers.sandbox.docker.container import Container, State, discard, inspect_container, start
from gymcp.mcp_servers.sandbox.docker.engine_api import EngineError
from gymcp.mcp_servers.sandbox.docker.reaper import start_reaper
from gymcp.mcp_servers.sandbox.spec import Launch
from gymcp.process_owner import owner

MAX_WARM_CONTAINERS = 4
"""Largest number of warm containers per launch."""
_IDLE_S = 60.0
"""Seconds without use after which the warm containers of a launch end."""
_MAX_REQUESTS = 8
"""Largest number of concurrent requests to the engine; on two cores it starts eight containers a second, however many
requests it has."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _LaunchContainers:
    """Containers of one launch."""

    launch: Launch
    warm: deque[Container] = field(default_factory=deque)
    taken: int = 0
    """Number of containers taken since the process began."""
    in_use: int = 0
    starting: int = 0
    last_taken: float = 0.0


class Pool:
    """The warm containers of a process: at most `size` per launch. Any thread may use the pool."""

    def __init__(self, *, size: int = MAX_WARM_CONTAINERS, idle_s: float = _IDLE_S) -> None:
        self._init = True
        self._size = size
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._launches: dict[str, _LaunchContainers] = {}
        self._workers = ThreadPoolExecutor(_MAX_REQUESTS, thread_name_prefix="gymcp-docker")
        self._starts: list[Future[None]] = []
        self._reaper: subprocess.Popen[bytes] | None = None
        self._expiry: threading.Timer | None = None
        self._closed = False

    @property
    def workers(self) -> ThreadPoolExecutor:
        """Threads for requests to the engine, which would block the event loop."""
        return self._workers

    @property
    def reaper_pid(self) -> int | None:
        return self._reaper.pid if self._reaper is not None else None

    def take(self, launch: Launch) -> tuple[Container, State]:
        """An unused container of this launch, for this caller only. Raises the errors of `container.start`."""
        self._ensure_reaper()
        if launch.workspace is not None:  # every such launch is unique: nothing can be started ahead
            return self._start_container(launch)
        with self._lock:
            containers = self._launches.setdefault(_launch_key(launch), _LaunchContainers(launch=launch))
            containers.taken += 1
            containers.in_use += 1
            containers.last_taken = time.monotonic()
        try:
            container = self._take_warm(containers) or self._start_container(launch)
        except BaseException:
            with self._lock:
                containers.in_use -= 1
            raise
        self._refill(containers)
        return container

    def give_back(self, launch: Launch, container: Container) -> None:
        """Discard a container that was taken. Raises EngineError."""
        with self._lock:
            if (containers := self._launches.get(_launch_key(launch))) is not None and launch.workspace is None:
                containers.in_use -= 1
        discard(container)

    def wait_until_filled(self) -> None:
        """Wait until all starts under way are done."""
        wait(list(self._starts))

    def _start_container(self, launch: Launch) -> tuple[Container, State]:
        try:
            container = start(launch, init=self._init)
        except EngineError as error:
            if not (self._init and "docker-init" in str(error)):
                raise
            self._init = False  # this engine was installed without it: the orphans of servers are not reaped
            container = start(launch, init=False)
        try:
            return container, inspect_container(container.id)
        except EngineError:
            discard(container)
            raise

    def _take_warm(self, containers: _LaunchContainers) -> tuple[Container, State] | None:
        while True:
            with self._lock:
                if not containers.warm:
                    return None
                container = containers.warm.popleft()
            with contextlib.suppress(EngineError):
                state = inspect_container(container.id)
                if state.running and not _has_ended(container.streams):
                    return container, state
            _try_to_discard(container)

    def _refill(self, containers: _LaunchContainers) -> None:
        with self._lock:
            if self._closed or containers.taken < 2:
                return
            self._starts = [future for future in self._starts if not future.done()]
            missing = min(self._size, containers.in_use) - len(containers.warm) - containers.starting
            for _ in range(missing):
                containers.starting += 1
                self._starts.append(self._workers.submit(self._start_warm, containers))

    def _start_warm(self, containers: _LaunchContainers) -> None:
        container: Container | None = None
        try:
            if not self._closed:
                container, _ = self._start_container(containers.launch)
        except (GymcpError, OSError) as error:
            log.warning("a warm container could not be started: %s", error)  # the next `take` starts one, and raises
        with self._lock:
            containers.starting -= 1
            keep = container is not None and not self._closed
            if container is not None and keep:
                containers.warm.append(container)
                self._start_expiry()
        if container is not None and not keep:
            _try_to_discard(container)

    def _start_expiry(self) -> None:
        """Start the timer of idle containers; the caller holds the lock."""
        if self._expiry is None:
            self._expiry = threading.Timer(self._idle_s, self._expire)
            self._expiry.daemon = True
            self._expiry.start()

    def _expire(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._expiry = None
            idle = [launch for launch in self._launches.values() if now - launch.last_taken >= self._idle_s]
            expired = [container for launch in idle for container in launch.warm]
            for launch in idle:
                launch.warm.clear()
            if any(launch.warm for launch in self._launches.values()):
                self._start_expiry()
        for container in expired:
            _try_to_discard(container)

    def _ensure_reaper(self) -> None:
        with self._lock:
            if self._reaper is None:
                self._reaper = start_reaper(owner())

    def close(self, of_process: int | None = None) -> None:
        """Remove the warm containers; containers in use are left to their users."""
        if of_process not in (None, os.getpid()):  # a fork inherits the exit handlers
            return
        with self._lock:
            self._closed = True
            unused = [container for launch in self._launches.values() for container in launch.warm]
            self._launches.clear()
            if self._expiry is not None:
                self._expiry.cancel()
                self._expiry = None
        for container in unused:
            _try_to_discard(container)
        self._workers.shutdown()
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.communicate()
            self._reaper = None


def pool() -> Pool:
    """The pool of this process."""
    return _pool_of(os.getpid())


@functools.cache
def _pool_of(_pid: int) -> Pool:
    """The pool of one process: a forked process must not take containers of its parent."""
    created = Pool()
    atexit.register(created.close, os.getpid())
    return created


def _launch_key(launch: Launch) -> str:
    return repr(replace(launch, env=dict(sorted(launch.env.items()))))


def _has_ended(streams: socket.socket) -> bool:
    """True at the end of the stream; False if it is open or has unread output."""
    try:
        return streams.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def _try_to_discard(container: Container) -> None:
    try:
        discard(container)
    except EngineError as error:
        log.warning("container %s is left to `gymcp clean`: %s", container.id[:12], error)
