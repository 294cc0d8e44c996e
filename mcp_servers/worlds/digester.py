"""The digest of a workspace, computed by a helper in a wall of its own that can read the workspace and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import PurePosixPath

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.native import native_server
from gymcp.mcp_servers.sandbox import Launch, Limits, Mount, Sandbox, SandboxProcess
from gymcp.mcp_servers.spec import FileState, ServerSpec
from gymcp.mcp_servers.worlds.workspace import Workspace
from gymcp.types import Json

WORLD = PurePosixPath("/world")
"""Where the helper sees the workspace, read-only."""
_SLACK_S = 10.0


class Digester:
    """Made by `open_digester`; serves one episode."""

    def __init__(self, server: str, source: FileState, process: SandboxProcess) -> None:
        self._server = server
        self._timeout_s = source.limits.seconds + _SLACK_S
        self._process = process

    async def key(self) -> str:
        """The digest of the state as it is now. Raises EnvInfraError where it has none: too large, or never at rest."""
        return str((await self._ask("key"))["key"])

    async def state(self) -> tuple[str, Json]:
        """(digest, the state as it is recorded)."""
        answer = await self._ask("state")
        return str(answer["key"]), answer.get("state")

    async def _ask(self, op: str) -> dict[str, Json]:
        try:
            async with asyncio.timeout(self._timeout_s):
                self._process.stdin.write(json.dumps({"op": op}).encode() + b"\n")
                await self._process.stdin.drain()
                line = await self._process.stdout.readline()
                answer = json.loads(line) if line else {"error": await self._last_words()}
        except TimeoutError:
            answer = {"error": f"no answer within {self._timeout_s:g} s"}
        except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, or longer than a line may be
            answer = {"error": f"{error}; {await self._last_words()}"}
        if not isinstance(answer, dict) or "error" in answer:
            raise EnvInfraError(f"server '{self._server}': its state has no digest: {answer.get('error', '?')}")
        if re.fullmatch("[0-9a-f]{64}", str(answer.get("key"))) is None:
            raise EnvInfraError(f"server '{self._server}': the digest helper answered without a digest")
        return answer

    async def _last_words(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
        return self._process.limit_hit() or f"the helper ended: {self._process.stderr_tail().strip()[-500:]}"


@contextlib.asynccontextmanager
async def open_digester(
    server: str, source: FileState, workspace: Workspace, sandbox: Sandbox
) -> AsyncIterator[Digester]:
    """The helper for one workspace, until the context is left. Raises EnvInfraError where it does not start."""
    program = _program()
    launch = Launch(
        argv=(*program.argv, str(WORLD), json.dumps(asdict(source))),
        env=program.env,
        mounts=(*program.mounts, Mount(source=workspace.folder, target=WORLD)),
        limits=Limits(
            memory_mb=source.limits.bytes // 2_000_000 + 512,
            processes=8,
            cpu_s=3600.0,
            disk_mb=source.limits.bytes // 1_000_000 + 16,
        ),
        entry=workspace.entry,
        reads_all=True,
    )
    async with sandbox.start(launch) as process:
        yield Digester(server, source, process)


def digest_program() -> str:
    """What tells one version of the helper from another: it decides what a digest is."""
    return _program().mounts[0].source.name


@functools.cache
def _program() -> ServerSpec:
    return native_server("digest", "gymcp.mcp_servers.programs.digest")
