"""A sandbox that prepares: servers that can be forked are, those with spares come from a pool, others start as ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.pool import WarmPool
from gymcp.mcp_servers.sandbox import Launch, Sandbox, SandboxProcess
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.template import Template, open_template

log = logging.getLogger(__name__)


class WarmSandbox:
    """Another sandbox, with a template for every kind of launch that names a `Forkable`. Made by `warmed`."""

    def __init__(self, inner: Bubblewrap, stack: AsyncExitStack) -> None:
        self._inner = inner
        self._stack = stack
        self._templates: dict[str, Template] = {}
        self._pools: dict[str, WarmPool[SandboxProcess]] = {}
        self._making = asyncio.Lock()
        self._refused = False

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def confined(self) -> bool:
        return True

    @property
    def templates(self) -> list[Template]:
        return list(self._templates.values())

    def check(self) -> None:
        self._inner.check()

    def start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        own_folder = launch.workspace is not None or any(mount.writable for mount in launch.mounts)
        # a network or a folder of the host would be all cells' together
        if launch.fork is not None and not own_folder and not launch.network:
            return self._fork(launch)
        if launch.spares and not own_folder:
            return self._spare(launch)
        return self._inner.start(launch)

    @asynccontextmanager
    async def _spare(self, launch: Launch) -> AsyncIterator[SandboxProcess]:
        key = repr(launch)
        if key not in self._pools:
            pool = WarmPool(
                lambda: self._inner.start(launch),
                spares=launch.spares,
                alive=lambda process: process.returncode is None,
            )
            self._pools[key] = await self._stack.enter_async_context(pool)
        async with self._pools[key].take() as process:
            yield process

    @asynccontextmanager
    async def _fork(self, launch: Launch) -> AsyncIterator[SandboxProcess]:
        try:
            template = await self.template(launch)
        except EnvInfraError as error:
            if not self._refused:
                log.warning("%s: every server is started anew instead: %s", self.name, error)
            self._refused = True
            template = None
        async with template.start(launch) if template else self._inner.start(launch) as process:
            yield process

    async def template(self, launch: Launch) -> Template | None:
        """The one for this program, sandbox settings and limits; a new one where the last has ended.

        None where one could not be made before. Raises EnvInfraError where it cannot be made.
        """
        key = repr(launch)
        async with self._making:
            if self._refused:
                return None
            found = self._templates.get(key)
            if found is None or found.gone.is_set():
                found = await self._stack.enter_async_context(open_template(self._inner, launch))
                self._templates[key] = found
            return found


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
