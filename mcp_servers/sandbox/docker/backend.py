"""The ``docker`` sandbox: servers from images, in containers of which each serves exactly one episode.

A server is user 65534 without capabilities or a way to them, on a read-only root, without network, under the same
system-call filter as with bubblewrap. Limits are held by the kernel; those that it does not know (CPU time of the tree,
growth of a workspace) by the watchdog.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from gymcp.errors import ConfigError, SandboxUnavailable
from gymcp.mcp_servers.sandbox.docker.container import Container, State
from gymcp.mcp_servers.sandbox.docker.engine_api import engine_info
from gymcp.mcp_servers.sandbox.docker.images import require
from gymcp.mcp_servers.sandbox.docker.pool import Pool, pool
from gymcp.mcp_servers.sandbox.docker.process import ContainerProcess
from gymcp.mcp_servers.sandbox.pidfd import uninterrupted
from gymcp.mcp_servers.sandbox.spec import Image, Launch, SandboxProcess


class Docker:
    """`pool`: where containers come from; by default the process's own, made on first use."""

    name = "docker"
    confined = True

    def __init__(self, *, pool: Pool | None = None) -> None:
        self._pool = pool

    def check(self) -> None:
        info = engine_info()
        if not any("name=seccomp" in option for option in info.get("SecurityOptions") or ()):
            raise SandboxUnavailable("docker: the engine filters no system calls (no seccomp); use --sandbox bwrap")
        if not (info.get("MemoryLimit") and info.get("PidsLimit")):
            raise SandboxUnavailable(
                "docker: the engine cannot limit memory and processes (a rootless one needs cgroups of version 2)"
            )

    def require(self, images: Iterable[Image]) -> None:
        """Raises SandboxUnavailable, saying what to run, for an image that the engine does not have."""
        for image in set(images):
            require(image)

    def start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        return self._run(launch)

    @asynccontextmanager
    async def _run(self, launch: Launch) -> AsyncIterator[ContainerProcess]:
        if not launch.argv and launch.image is None:
            raise ConfigError("docker: an empty command; have e.g. python3 server.py, or name an image")
        source = self._pool or pool()
        container, state = await _taken(source, launch)
        process = ContainerProcess(source, launch, container, state)
        try:
            await process.open()
            yield process
        finally:
            await uninterrupted(process.close())


async def _taken(source: Pool, launch: Launch) -> tuple[Container, State]:
    """A container; when cancelled meanwhile, it is thrown away before saying so."""
    taking = asyncio.get_running_loop().run_in_executor(source.workers, source.take, launch)
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        await uninterrupted(_given_back(source, launch, taking))
        raise


async def _given_back(source: Pool, launch: Launch, taking: asyncio.Future[tuple[Container, State]]) -> None:
    await asyncio.wait([taking])
    if taking.exception() is None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(source.workers, source.give_back, launch, taking.result()[0])
