"""A sandbox that prepares: servers that can be forked are, those with spares come from a pool, others start as ever."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.forkserver.client import Template, open_template
from gymcp.mcp_servers.forkserver.warm_pool import WarmPool
from gymcp.mcp_servers.redaction import redaction_of
from gymcp.mcp_servers.sandbox import Launch, Sandbox, SandboxProcess
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.users.identity import why_no_own_user
from gymcp.mcp_servers.sanitize import plain_text
from gymcp.mcp_servers.workspaces.overlay import overlay_namespace

_AWAKE_S = 30.0
FREE_MEMORY_FACTOR = 2
"""Multiple of a server's memory limit that must be free before one more of it, or one more episode, is started."""
_PING_ID = "gymcp-awake"
_PING = json.dumps({"jsonrpc": "2.0", "id": _PING_ID, "method": "ping"}).encode() + b"\n"
log = logging.getLogger(__name__)


class _NotAwake(EnvInfraError):
    """A spare is of no use."""


class WarmSandbox:
    """Another sandbox, with a template for every kind of launch that names a `Forkable`. Made by `warmed`."""

    def __init__(self, inner: Bubblewrap, stack: AsyncExitStack) -> None:
        self._inner = inner
        self._stack = stack
        self._templates: dict[str, Template] = {}
        self._pools: dict[str, WarmPool[SandboxProcess]] = {}
        self._making = asyncio.Lock()
        self._silent: set[str] = set()
        self.refused: dict[str, str] = {}
        """Program -> why it is started instead of forked."""

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def confined(self) -> bool:
        return True

    @property
    def templates(self) -> list[Template]:
        return list(self._templates.values())

    async def filled(self) -> None:
        """Returns when no spare is being started any more."""
        for pool in self._pools.values():
            await pool.filled()

    def check(self) -> None:
        self._inner.check()

    def start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        # a network or a folder of the host would be all cells' together
        shares = launch.network or any(mount.writable for mount in launch.mounts)
        if launch.fork is not None and not shares and (launch.workspace is None or _is_mounted(launch)):
            return self._fork(launch)
        return self._start(launch)

    def _start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        own_folder = launch.workspace is not None or any(mount.writable for mount in launch.mounts)
        return self._spare(launch) if launch.warm_pool_size and not own_folder else self._inner.start(launch)

    @asynccontextmanager
    async def _spare(self, launch: Launch) -> AsyncIterator[SandboxProcess]:
        key = repr(launch)
        if key not in self._pools:
            pool = WarmPool(
                partial(self._awake, launch),
                spares=launch.warm_pool_size,
                alive=lambda process: process.returncode is None,
                has_room=lambda: free_memory_mb() > FREE_MEMORY_FACTOR * launch.limits.memory_mb,
            )
            self._pools[key] = await self._stack.enter_async_context(pool)
        async with AsyncExitStack() as stack:
            try:
                process = await stack.enter_async_context(self._pools[key].take())
            except _NotAwake:  # the session that is to come tells better what is wrong, or finds nothing wrong
                process = await stack.enter_async_context(self._inner.start(launch))
            yield process

    @asynccontextmanager
    async def _awake(self, launch: Launch) -> AsyncIterator[SandboxProcess]:
        """A server that has answered a ping, which any client may send ahead of the handshake: it is up."""
        async with self._inner.start(launch) as process:
            if repr(launch) not in self._silent:
                await self._ping(launch, process)
            yield process

    async def _ping(self, launch: Launch, process: SandboxProcess) -> None:
        """Raises _NotAwake where something else comes than one answer; a server that is silent is not asked again."""
        process.stdin.write(_PING)
        try:
            async with asyncio.timeout(_AWAKE_S):
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError as error:
            self._silent.add(repr(launch))
            raise _NotAwake(f"a server did not answer a ping within {_AWAKE_S:g} s") from error
        except (OSError, ValueError) as error:
            await process.drain_stderr()
            raise _NotAwake(f"a server broke off: {error}{_last_words(process, launch)}") from error
        try:
            answered = json.loads(line)["id"] == _PING_ID
        except (ValueError, KeyError, TypeError, RecursionError):
            answered = False
        if not answered:
            said = _unsecret(plain_text(line.decode(errors="replace")), launch).strip()[:200] or "it has ended"
            raise _NotAwake(f"a server did not answer a ping, but: {said}{_last_words(process, launch)}")

    @asynccontextmanager
    async def _fork(self, launch: Launch) -> AsyncIterator[SandboxProcess]:
        template = await self.template(launch)
        async with AsyncExitStack() as stack:
            tree = _tree(launch) if template is not None and launch.workspace is not None else None
            if template is None or (tree is None and launch.workspace is not None):
                process = await stack.enter_async_context(self._start(launch))
            else:
                try:
                    process = await stack.enter_async_context(template.start(launch, tree=tree))
                finally:
                    if tree is not None:
                        os.close(tree)
            yield process

    async def template(self, launch: Launch) -> Template | None:
        """The one for this program, sandbox settings and limits; a new one where the last has ended.

        None where it cannot be made, or be forked: then it is not tried again.
        """
        launch = replace(launch, workspace=None, upper_folder=None, entry=())
        key = repr(launch)
        async with self._making:
            if key in self.refused:
                return None
            if (why := _why_not_forked(launch)) is not None:
                log.warning("%s: every server is started anew instead: %s", self.name, why)
                self.refused[key] = why
                return None
            found = self._templates.get(key)
            if found is None or found.gone.is_set():
                try:
                    found = await self._stack.enter_async_context(open_template(self._inner, launch))
                except EnvInfraError as error:
                    self.refused[key] = _unsecret(str(error), launch)
                    log.warning("%s: every server is started anew instead: %s", self.name, self.refused[key])
                    return None
                self._templates[key] = found
            return found


def _why_not_forked(launch: Launch) -> str | None:
    """What its program could do to the host while it is imported.

    A template may make namespaces, and so mount a /proc, whose settings belong to root's id.
    """
    if launch.fork is not None and launch.fork.script and why_no_own_user():
        return f"a program of others is not imported with root's id on the host: {why_no_own_user()}"
    return None


def _last_words(process: SandboxProcess, launch: Launch) -> str:
    last = _unsecret(plain_text(process.stderr_tail()), launch).strip()[-500:]
    return f"; its last words: {last}" if last else ""


def _unsecret(text: str, launch: Launch) -> str:
    redaction = redaction_of(launch.secrets)
    return text if redaction is None else redaction.text(text)


def free_memory_mb() -> float:
    """What the kernel could give out without swapping."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024 / 1e6


def _is_mounted(launch: Launch) -> bool:
    """Whether the workspace is a mount that can be handed to a cell.

    To native servers only where it is read-only: a copy of theirs by fork would not have what they have written there.
    """
    assert launch.fork is not None
    return bool(launch.entry and (launch.fork.script or launch.read_only))


def _tree(launch: Launch) -> int | None:
    """The mount of the workspace, to be closed; None where the kernel is too old to hand it on as it is wanted."""
    namespace = overlay_namespace()
    if namespace is None or launch.workspace is None:
        return None
    try:
        return namespace.open_tree(launch.workspace, read_only=launch.read_only)
    except EnvInfraError:
        return None


@asynccontextmanager
async def warmed(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """The sandbox with templates and spares while the context lasts, where it can keep some; else the sandbox itself.

    For as many episodes as one event loop runs. All end with the context, and with the harness.
    """
    if not isinstance(sandbox, Bubblewrap):
        yield sandbox
        return
    async with AsyncExitStack() as stack:
        yield WarmSandbox(sandbox, stack)
