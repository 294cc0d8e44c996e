"""A server that is started by the first call that it gets; until then its fresh state stands for it.

The world key has, for a server that was not started or is as it was when it started, the digest of what it starts from:
so a start alone, or a call that only reads, changes no world, and the key needs no process. The state that is recorded
holds the servers that are no longer as they started. Nothing of that is believed unseen: each server's fresh state is
compared with its baseline when it starts, and the first time on a machine with a second process beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from gymcp.aio import hosted
from gymcp.cache import cache_errors
from gymcp.envs.episodes.baseline_store import baseline_book
from gymcp.errors import CannotFork, DirtyReset, EnvInfraError, IntegrityError, ServerLimitExceeded, Undigestible
from gymcp.keyed_lock import turn
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.sandbox import Sandbox, interpreter
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.sessions.tool_list_cache import evict_tools, hash_tool_list, store_tools
from gymcp.mcp_servers.snapshots.server_snapshot import ServerSnapshot
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.workspaces.digester import digest_program
from gymcp.types import Json, Tool, ToolCall, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a server of an episode is started from."""

    server: ServerSpec
    sandbox: Sandbox
    initial_state: Json
    seed: int
    task: str

    def identity(self) -> str:
        """Of its fresh state, whatever the task, the environment and the seed."""
        of = [self.server.parts(), self.initial_state, self.sandbox.name, interpreter().version, digest_program()]
        return digest(["server", *of])

    def session(self, *, seed: int | None = None) -> AbstractAsyncContextManager[ToolSession]:
        seed = self.seed if seed is None else seed
        return open_session(self.server, self.sandbox, initial_state=self.initial_state, seed=seed, task=self.task)


class LateServer:
    """One server of one episode. Its processes end with the `stack`; used by one task at a time."""

    def __init__(self, start: Start, tools: tuple[Tool, ...], stack: contextlib.AsyncExitStack) -> None:
        self.spec = start.server
        self.tools = tools
        self._start = start
        self._stack = stack
        self._identity = start.identity()
        self._fresh_key = ""
        self._session: ToolSession | None = None

    @property
    def session(self) -> ToolSession | None:
        """None while it was not started."""
        return self._session

    @property
    def has_changed(self) -> bool:
        """True once its state is not the one that it started with."""
        return self._session is not None and self._session.world_key != self._fresh_key

    @property
    def world_key(self) -> str:
        """Of its state where that has changed, else of what it starts from."""
        return self._session.world_key if self._session is not None and self.has_changed else self._identity

    @property
    def has_observable_state(self) -> bool:
        """True where `state` has something to tell, which of a server that is as it started it has not."""
        return self._session is not None and self.has_changed and self._session.has_observable_state

    async def update(self) -> None:
        if self._session is not None:
            await self._session.update()

    async def confirm(self) -> None:
        if self._session is not None and self._session.has_observable_state:
            await self._session.confirm()

    async def state(self) -> tuple[str, Json]:
        return await (await self.opened()).state()

    async def call_tool(self, call: ToolCall, arguments: Mapping[str, Json], *, timeout_s: float) -> ToolResult:
        """The tool's answer, from a server that is started if it was not. Raises EnvInfraError."""
        return await (await self.opened()).call_tool(call, arguments, timeout_s=timeout_s)

    async def opened(self) -> ToolSession:
        """The live session. Raises EnvInfraError where it does not start, DirtyReset where it does not start clean."""
        if self._session is None:
            try:
                session = await self._stack.enter_async_context(hosted(self._start.session()))
                self._compare_tools(session)
                await session.update()
                if session.has_observable_state:
                    await self._prove_clean(session)
            except (IntegrityError, Undigestible, ServerLimitExceeded) as error:
                # in the middle of an episode no caller can mend it; a fresh world without a digest is nobody's doing
                raise EnvInfraError(str(error)) from error
            self._fresh_key, self._session = session.world_key, session
        return self._session

    async def resume(self, image: ServerSnapshot) -> None:
        """Starts from an image instead. Raises EnvInfraError, CannotFork where its fresh state is not known."""
        start = self._start
        with cache_errors():
            fresh = baseline_book().get(self._identity)
        opening = image.open(start.sandbox, initial_state=start.initial_state, seed=start.seed, task=start.task)
        session = await self._stack.enter_async_context(hosted(opening))
        await session.update()
        if session.has_observable_state and fresh is None:
            raise CannotFork(f"server '{self.spec.name}': its baseline is gone from the cache")
        self._fresh_key = fresh if session.has_observable_state and fresh is not None else _never_changed(session)
        self._session = session

    def _compare_tools(self, session: ToolSession) -> None:
        if session.tools == self.tools or hash_tool_list(session.tools) == hash_tool_list(self.tools):
            return  # in whatever order
        evict_tools(self.spec)
        store_tools(self.spec, session.tools)
        raise EnvInfraError(
            f"server '{self.spec.name}': list: it has other tools than when it was last started, on which this episode "
            "was built; the next one starts from the new list. Tools of a lazy environment's servers must not depend "
            "on a task's initial state"
        )

    async def _prove_clean(self, session: ToolSession) -> None:
        """Compares with the baseline; makes one, with another process and another seed, where there is none."""
        book = baseline_book()
        with cache_errors():
            expected = book.get(self._identity)
        if expected is None:
            async with turn(self._identity):
                with cache_errors():
                    expected = book.get(self._identity)
                expected = expected or await self._witnessed(session.world_key)
        if expected != session.world_key:
            raise DirtyReset(self._dirty("the reset is not clean", expected, session.world_key))

    async def _witnessed(self, found: str) -> str:
        async with hosted(self._start.session(seed=self._start.seed + 1)) as witness:
            await witness.update()
            if witness.world_key != found:
                raise DirtyReset(self._dirty("two fresh worlds differ", found, witness.world_key))
        with cache_errors():
            names = {"env": f"server {self.spec.name}", "version": "", "task": self._start.task}
            return baseline_book().add(self._identity, found, names)

    def _dirty(self, what: str, expected: str, found: str) -> str:
        return (
            f"server '{self.spec.name}', started for task '{self._start.task}': {what}: expected {expected}, found "
            f"{found}. It keeps something outside its world, or starts from time, chance or the seed; mask what may "
            "differ"
        )


def _never_changed(session: ToolSession) -> str:
    """Of a server that tells no state: a key that it has before its first call."""
    return session.world_key if session.key_identifies_state else ""
