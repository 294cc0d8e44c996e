"""The digest of a workspace, computed by a helper in a wall of its own that can read the workspace and nothing else.

One helper serves one episode. A warm sandbox forks it from one that has imported what it needs and seen no world.

What a world does to its helper is told from what befalls the helper: one that ended without a limit of its own is
replaced, once for each question; if the next one ends as well, the world has no digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict

from gymcp.errors import EnvInfraError, Undigestible
from gymcp.mcp_servers.loop_share import Deadline
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Launch, Limits, Sandbox, SandboxProcess
from gymcp.mcp_servers.spec import FileState, ServerSpec
from gymcp.mcp_servers.workspaces.workspace import Workspace
from gymcp.types import Json

_SLACK_S = 10.0
_END_TIMEOUT_S = 5.0
_LINE_BYTES = 64_000_000
"""Longest answer of a helper; one of a megabyte is parsed off the event loop."""
_PARSED_AT_ONCE = 1_000_000
_PROGRAM = "gymcp.mcp_servers.programs.digest"
_PARTS = ("tree", "git", "sqlite")


class Digester:
    """Made by `open_digester`; serves one episode."""

    def __init__(
        self, server: str, source: FileState, process: SandboxProcess, again: Callable[[], Awaitable[SandboxProcess]]
    ) -> None:
        self._server = server
        self._timeout_s = source.limits.seconds + _SLACK_S
        self._process = process
        self._again = again
        """Starts another helper of the same world."""
        self._source = repr(source)
        self._base: tuple[str | None, Json] = (None, None)
        """The last state and its digest: of the next one only the difference is told."""

    async def key(self, *, read_again: bool = False) -> str:
        """The digest of the state as it is now. Raises Undigestible if it has none: too large, or never at rest.

        `read_again`: files that may have been written to since the episode began are read whatever their times say.
        """
        return str((await self._ask({"op": "key", "again": read_again}))["key"])

    async def state(self, key: str) -> tuple[str, Json]:
        """(digest, the state as it is recorded); told again only if the state of `key` is not at hand.

        Raises Undigestible.
        """
        state = _states.get((self._source, key))
        if state is None:
            answer = await self._ask({"op": "state", "since": self._base[0]})
            key, state = str(answer["key"]), self._merged(answer)
            if self._base[0] is None:  # a fresh world, which other episodes of the task start from
                _states.put((self._source, key), state)
        self._base = (key, state)
        return self._base

    def _merged(self, answer: dict[str, Json]) -> Json:
        try:
            if answer["files"] is None:
                return answer["about"]
            old = self._base[1]["files"] if answer["since"] is not None else {}
            removed = set(answer["removed"])
            files = {path: entry for path, entry in old.items() if path not in removed} | answer["files"]
            return {**answer["about"], "files": files}
        except (KeyError, TypeError) as error:
            raise EnvInfraError(f"server '{self._server}': the digest helper told no state: {error!r}") from error

    async def _ask(self, request: dict[str, Json]) -> dict[str, Json]:
        answer = await self._asked(request)
        if answer is None:
            words = await self._last_words()
            if self._process.limit_hit() is None:
                self._process = await self._again()
                answer = await self._asked(request)
                words = words if answer is not None else await self._last_words()
            if answer is None:
                raise self._undigestible(words)
        if "error" in answer:
            raise self._undigestible(str(answer["error"])) if not answer.get("fault") else self._fault(answer["error"])
        if re.fullmatch("[0-9a-f]{64}", str(answer.get("key"))) is None:
            raise self._fault("the digest helper answered without a digest")
        return answer

    async def _asked(self, request: dict[str, Json]) -> dict[str, Json] | None:
        """The helper's answer; None if it has ended, or never serves again."""
        try:
            async with Deadline(self._timeout_s):
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                await self._process.stdin.drain()
                line = await self._process.stdout.readline()
        except TimeoutError:
            return {"error": f"no answer within {self._timeout_s:g} s"}
        except OSError:
            return None
        except ValueError:
            return {"error": f"too large: more than {_LINE_BYTES} bytes to tell"}
        try:
            answer = json.loads(line) if len(line) < _PARSED_AT_ONCE else await asyncio.to_thread(json.loads, line)
        except (ValueError, RecursionError):  # it ended in the middle of the line, or before
            return None
        return answer if isinstance(answer, dict) else {}

    def _undigestible(self, why: str) -> Undigestible:
        return Undigestible(f"server '{self._server}': its state has no digest: {why}")

    def _fault(self, why: str) -> EnvInfraError:
        return EnvInfraError(f"server '{self._server}': its state has no digest: {why}")

    async def _last_words(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._process.wait()
        return self._process.limit_hit() or f"the helper ended: {self._process.stderr_tail().strip()[-500:]}"


class RecentStates:
    """The states that fresh worlds were in, as many as have no more than so many entries together."""

    def __init__(self, entries: int) -> None:
        self._room = entries
        self._states: dict[tuple[str, str], Json] = {}

    def get(self, key: tuple[str, str]) -> Json:
        """None where it is not at hand."""
        state = self._states.pop(key, None)
        if state is not None:
            self._states[key] = state  # the last one to go
        return state

    def put(self, key: tuple[str, str], state: Json) -> None:
        self._room -= _weight(state)
        self._states[key] = state
        while self._room < 0 and self._states:
            self._room += _weight(self._states.pop(next(iter(self._states))))


def _weight(state: Json) -> int:
    """Files and tables are counted, not their bytes: what is told of each is small."""
    return 1 + sum(len(part) for part in state.values() if isinstance(part, dict | list))


_states = RecentStates(20_000)


@contextlib.asynccontextmanager
async def open_digester(
    server: str, source: FileState, workspace: Workspace, sandbox: Sandbox
) -> AsyncIterator[Digester]:
    """The helper for one workspace, until the context is left. Raises EnvInfraError if it does not start.

    Open it before anything can write to the workspace: what has not changed since then is read once.
    """
    begun_ns = time.time_ns()
    program = _program()
    launch = Launch(
        argv=program.argv,
        env=program.env,
        mounts=program.mounts,
        limits=Limits(
            memory_mb=source.limits.bytes // 2_000_000 + 512,
            processes=8,
            cpu_s=3600.0,
            disk_mb=source.limits.bytes // 1_000_000 + 16,
            line_bytes=_LINE_BYTES,
        ),
        workspace=workspace.folder,
        read_only=True,
        entry=workspace.entry,
        reads_all=True,
        fork=program.fork,
    )
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> SandboxProcess:
            process = await stack.enter_async_context(sandbox.start(launch))
            process.stdin.write(json.dumps({**asdict(source), "begun_ns": begun_ns}).encode() + b"\n")
            return process

        yield Digester(server, source, await start(), start)


def digest_program() -> str:
    """What tells one version of the helper from another: it decides what a digest is."""
    return _program().mounts[0].source.name


@functools.cache
def _program() -> ServerSpec:
    modules = [f"{_PROGRAM}.{part}" for part in _PARTS]
    return native_server("digest", f"{_PROGRAM}.server", modules=modules, start="fork")
