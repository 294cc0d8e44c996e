"""A sandbox that prepares servers: it forks those that can be forked, takes others from a pool, and starts the rest."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

from gymcp.errors import CannotFork, EnvInfraError
from gymcp.mcp_servers.forkserver.client import ForkServer, open_fork_server
from gymcp.mcp_servers.forkserver.warm_pool import WarmPool
from gymcp.mcp_servers.machine_limits import free_memory_mb, memory_to_keep_free_mb
from gymcp.mcp_servers.output_tail import describe_output, show_output
from gymcp.mcp_servers.redaction import redaction_of
from gymcp.mcp_servers.sandbox import Launch, Sandbox, SandboxProcess
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.users.identity import why_no_own_user
from gymcp.mcp_servers.sanitize import plain_text
from gymcp.mcp_servers.workspaces.overlay import overlay_namespace

_PING_TIMEOUT_S = 30.0
_PING_ID = "gymcp-awake"
_PING = json.dumps({"jsonrpc": "2.0", "id": _PING_ID, "method": "ping"}).encode() + b"\n"
log = logging.getLogger(__name__)


class _NoPong(EnvInfraError):
    """A prestarted server did not answer its ping, so it is of no use."""


class WarmSandbox:
    """Another sandbox with a fork server for every program that can be forked, and pools of prestarted servers.

    `open_warm_sandbox` makes it.
    """

    def __init__(self, inner: Bubblewrap, stack: AsyncExitStack) -> None:
        self._inner = inner
        self._stack = stack
        self._fork_servers: dict[str, ForkServer] = {}
        self._pools: dict[str, WarmPool[SandboxProcess]] = {}
        self._opening = asyncio.Lock()
        self._silent: set[str] = set()
        """Launches of servers that did not answer a ping in time; they are not pinged again."""
        self.refused: dict[str, str] = {}
        """Reasons why programs are started instead of forked, by launch."""

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def confined(self) -> bool:
        return self._inner.confined

    @property
    def can_fork(self) -> bool:
        return self._inner.can_fork

    @property
    def runs_images(self) -> bool:
        return self._inner.runs_images

    @property
    def has_server_user(self) -> bool:
        return self._inner.has_server_user

    @property
    def mounts_overlays(self) -> bool:
        return self._inner.mounts_overlays

    @property
    def fork_servers(self) -> list[ForkServer]:
        return list(self._fork_servers.values())

    async def wait_until_full(self) -> None:
        """Return when no pool is starting a server."""
        for pool in self._pools.values():
            await pool.wait_until_full()

    def check(self) -> None:
        self._inner.check()

    def start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        # all servers of a fork server would share a network or a folder of the host
        shares = launch.network or any(mount.writable for mount in launch.mounts)
        if launch.fork is not None and not shares and (launch.workspace is None or _is_mounted(launch)):
            return self._fork(launch)
        return self._start(launch)

    def _start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        own_folder = launch.workspace is not None or any(mount.writable for mount in launch.mounts)
        return self._take(launch) if launch.warm_pool_size and not own_folder else self._inner.start(launch)

    @asynccontextmanager
    async def _take(self, launch: Launch) -> AsyncIterator[SandboxProcess]:
        """A server from the pool of its launch."""
        key = repr(launch)
        if key not in self._pools:
            pool = WarmPool(
                partial(self._start_and_ping, launch),
                size=launch.warm_pool_size,
                alive=lambda process: process.returncode is None,
                has_room=lambda: free_memory_mb() > memory_to_keep_free_mb([launch.limits]),
            )
            self._pools[key] = await self._stack.enter_async_context(pool)
        async with AsyncExitStack() as stack:
            try:
                process = await stack.enter_async_context(self._pools[key].take())
            except _NoPong:  # the session will report the fault better, or will find none
                process = await stack.enter_async_context(self._inner.start(launch))
            yield process

    @asynccontextmanager
    async def _start_and_ping(self, launch: Launch) -> AsyncIterator[SandboxProcess]:
        """A server that has answered a ping, so it is up. A client may send a ping before the handshake."""
        async with self._inner.start(launch) as process:
            if repr(launch) not in self._silent:
                await self._ping(launch, process)
            yield process

    async def _ping(self, launch: Launch, process: SandboxProcess) -> None:
        """Raise _NoPong if anything else comes than one answer. A server that is silent is not pinged again."""
        process.stdin.write(_PING)
        try:
            async with asyncio.timeout(_PING_TIMEOUT_S):
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError as error:
            self._silent.add(repr(launch))
            raise _NoPong(f"a server did not answer a ping within {_PING_TIMEOUT_S:g} s") from error
        except (OSError, ValueError) as error:
            await process.drain_stderr()
            raise _NoPong(f"a server broke off: {error}{_describe_output(process, launch)}") from error
        try:
            is_pong = json.loads(line)["id"] == _PING_ID
        except (ValueError, KeyError, TypeError, RecursionError):
            is_pong = False
        if not is_pong:
            text = _redact(plain_text(line.decode(errors="replace")), launch).strip()[:200] or "it has ended"
            raise _NoPong(f"a server did not answer a ping, but: {text}{_describe_output(process, launch)}")

    @asynccontextmanager
    async def _fork(self, launch: Launch) -> AsyncIterator[SandboxProcess]:
        fork_server = await self._ensure_fork_server(launch)
        async with AsyncExitStack() as stack:
            workspace = _open_workspace_mount(launch) if fork_server and launch.workspace is not None else None
            if fork_server is None or (workspace is None and launch.workspace is not None):
                process = await stack.enter_async_context(self._start(launch))
            else:
                try:
                    process = await stack.enter_async_context(fork_server.open_server(launch, workspace=workspace))
                except CannotFork as error:
                    self._refuse(launch, str(error))
                    process = await stack.enter_async_context(self._start(launch))
                finally:
                    if workspace is not None:
                        os.close(workspace)
            yield process

    async def _ensure_fork_server(self, launch: Launch) -> ForkServer | None:
        """Fork server for this program, sandbox settings and limits; a new one if the last has ended.

        None if the program cannot be imported or forked. It is then not tried again.
        """
        launch = _without_workspace(launch)
        key = repr(launch)
        async with self._opening:
            if key in self.refused:
                return None
            if (why := _why_not_forked(launch)) is not None:
                self._refuse(launch, why)
                return None
            fork_server = self._fork_servers.get(key)
            if fork_server is None or fork_server.gone.is_set():
                try:
                    fork_server = await self._stack.enter_async_context(open_fork_server(self._inner, launch))
                except EnvInfraError as error:
                    self._refuse(launch, str(error))
                    return None
                self._fork_servers[key] = fork_server
            return fork_server

    def _refuse(self, launch: Launch, why: str) -> None:
        """Start the program's servers from now on, and log why, once."""
        key = repr(_without_workspace(launch))
        if key not in self.refused:
            self.refused[key] = _redact(why, launch)
            log.warning("%s: every server is started anew instead: %s", self.name, self.refused[key])


def _without_workspace(launch: Launch) -> Launch:
    """The launch as far as it is the same for all episodes."""
    return replace(launch, workspace=None, upper_folder=None, entry=())


def _why_not_forked(launch: Launch) -> str | None:
    """Reason why the program must not be imported in a fork server; None if there is none.

    A fork server may make namespaces, and so may mount a /proc, the settings of which belong to root's id.
    """
    if launch.fork is not None and launch.fork.script and why_no_own_user():
        return f"a program of others is not imported with root's id on the host: {why_no_own_user()}"
    return None


def _describe_output(process: SandboxProcess, launch: Launch) -> str:
    return describe_output(_redact(show_output(process.stderr_tail()), launch), "warm-server")


def _redact(text: str, launch: Launch) -> str:
    redaction = redaction_of(launch.secrets)
    return text if redaction is None else redaction.text(text)


def _is_mounted(launch: Launch) -> bool:
    """True if the workspace is a mount that can be handed to a forked server.

    For a native server it must be read-only: a copy by fork would not have the files that the server has written there.
    """
    assert launch.fork is not None
    return bool(launch.entry and (launch.fork.script or launch.read_only))


def _open_workspace_mount(launch: Launch) -> int | None:
    """Descriptor of the workspace's mount, which the caller closes; None if the kernel is too old for that."""
    namespace = overlay_namespace()
    if namespace is None or launch.workspace is None:
        return None
    try:
        return namespace.open_tree(launch.workspace, read_only=launch.read_only)
    except EnvInfraError:
        return None


@asynccontextmanager
async def open_warm_sandbox(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """The sandbox with fork servers and pools for the duration of the context, if it is bubblewrap; else itself.

    One serves all episodes of an event loop. Fork servers and pools end with the context, and with the harness.
    """
    if not isinstance(sandbox, Bubblewrap):
        yield sandbox
        return
    async with AsyncExitStack() as stack:
        yield WarmSandbox(sandbox, stack)
