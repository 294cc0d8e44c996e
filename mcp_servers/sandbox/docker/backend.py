"""The ``docker`` sandbox: servers from images, in containers that serve exactly one episode each.

A server is user 65534 without capabilities or a way to gain any, on a read-only root, without network, under the same
system-call filter as with bubblewrap. The kernel enforces the limits that it knows; the watchdog enforces the others:
CPU time of the process tree, and growth of a workspace.
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
from gymcp.mcp_servers.sandbox.pidfd import run_despite_cancellation
from gymcp.mcp_servers.sandbox.spec import Image, Launch, SandboxProcess


class Docker:
    """The ``docker`` backend; its containers come from `pool`, by default the process's own."""

    name = "docker"
    confined = True
    can_fork = False
    runs_images = True
    has_server_user = False
    mounts_overlays = False

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
        """Raise SandboxUnavailable, with the command to run, for an image that the engine does not have."""
        for image in set(images):
            require(image)

    def start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        return self._run(launch)

    @asynccontextmanager
    async def _run(self, launch: Launch) -> AsyncIterator[ContainerProcess]:
        if not launch.argv and launch.image is None:
            raise ConfigError("docker: an empty command; have e.g. python3 server.py, or name an image")
        source = self._pool or pool()
        container, state = await _take(source, launch)
        process = ContainerProcess(source, launch, container, state)
        try:
            await process.open()
            yield process
        finally:
            await run_despite_cancellation(process.close())


async def _take(source: Pool, launch: Launch) -> tuple[Container, State]:
    """Take a container. If cancelled meanwhile, discard the container before raising CancelledError."""
    taking = asyncio.get_running_loop().run_in_executor(source.workers, source.take, launch)
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        await run_despite_cancellation(_discard_when_taken(source, launch, taking))
        raise


async def _discard_when_taken(source: Pool, launch: Launch, taking: asyncio.Future[tuple[Container, State]]) -> None:
    await asyncio.wait([taking])
    if taking.exception() is None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(source.workers, source.give_back, launch, taking.result()[0])
