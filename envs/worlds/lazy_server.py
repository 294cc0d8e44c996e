"""A server that is started by its first call; until then the digest of its start stands for its fresh state.

In the world key, a server that has not been started, or is still in its fresh state, counts as the digest of what it is
started from. So a start alone, or a call that only reads, does not change the world, and the key needs no process. The
recorded state holds only the servers that are no longer in their fresh state. This is safe because every fresh state is
proven: it is compared with its baseline when the server starts, and the first time on a machine with a second process
started beside it (`gymcp.envs.worlds.baselines`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from gymcp.aio import run_in_own_task
from gymcp.atomic import cache_errors
from gymcp.envs.worlds.baseline_store import baseline_store
from gymcp.envs.worlds.baselines import FreshState, verify_fresh
from gymcp.errors import CannotFork, EnvInfraError, IntegrityError, ServerLimitExceeded, Undigestible
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.sandbox import Sandbox, interpreter
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.sessions.tool_list_cache import evict_tools, hash_tool_list, store_tools
from gymcp.mcp_servers.snapshots.server_snapshot import ServerSnapshot
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.workspaces.digester import digest_program
from gymcp.types import Json, Tool, ToolCall, ToolResult

ADVICE = "It keeps something outside its world, or starts from time, chance or the seed; mask what may differ"
"""Likely causes of a server whose fresh state is not its baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStart:
    """Everything that a server of an episode is started from."""

    server: ServerSpec
    sandbox: Sandbox
    initial_state: Json
    seed: int
    task: str

    def identity(self) -> str:
        """Digest of all that determines the fresh state; task, environment and seed do not."""
        parts = [self.server.parts(), self.initial_state, self.sandbox.name, interpreter().version, digest_program()]
        return digest(["server", *parts])

    def open_session(self, *, seed: int | None = None) -> AbstractAsyncContextManager[ToolSession]:
        """A session with a new process of the server. `seed` replaces the start's own."""
        seed = self.seed if seed is None else seed
        return open_session(self.server, self.sandbox, initial_state=self.initial_state, seed=seed, task=self.task)


class LazyServer:
    """One server of one episode. Its process ends with the `stack`; one task at a time may use it."""

    def __init__(self, start: ServerStart, tools: tuple[Tool, ...], stack: contextlib.AsyncExitStack) -> None:
        self.spec = start.server
        self.tools = tools
        self._start = start
        self._stack = stack
        self._identity = start.identity()
        self._fresh_key = ""
        self._session: ToolSession | None = None
        self.is_starting = False
        """True while the server is being started by a call, and for good if it does not start."""

    @property
    def session(self) -> ToolSession | None:
        """The live session; None if the server has not been started."""
        return self._session

    @property
    def has_changed(self) -> bool:
        """True if the server has been started and its state is not its fresh one."""
        return self._session is not None and self._session.world_key != self._fresh_key

    @property
    def world_key(self) -> str:
        """Digest of the state if it has changed, else digest of what the server is started from."""
        return self._session.world_key if self._session is not None and self.has_changed else self._identity

    @property
    def has_observable_state(self) -> bool:
        """True if `state` gives something to record: the server gives its state, and the state has changed."""
        return self._session is not None and self.has_changed and self._session.has_observable_state

    async def update(self) -> None:
        if self._session is not None:
            await self._session.update()

    async def confirm(self) -> None:
        if self._session is not None and self._session.has_observable_state:
            await self._session.confirm()

    async def state(self) -> tuple[str, Json]:
        return await (await self.ensure_started()).state()

    async def call_tool(self, call: ToolCall, arguments: Mapping[str, Json], *, timeout_s: float) -> ToolResult:
        """The tool's result; starts the server if necessary. Raises EnvInfraError."""
        return await (await self.ensure_started()).call_tool(call, arguments, timeout_s=timeout_s)

    async def ensure_started(self) -> ToolSession:
        """The live session. Raises EnvInfraError if the server does not start, DirtyReset if it is not clean then."""
        if self._session is None:
            self.is_starting = True
            try:
                session = await self._stack.enter_async_context(run_in_own_task(self._start.open_session()))
                self._check_tools(session)
                await session.update()
                if session.has_observable_state:
                    await self._verify_fresh(session)
            except (IntegrityError, Undigestible, ServerLimitExceeded) as error:
                # no caller can mend it in the middle of an episode, and no agent caused a fresh state without a digest
                raise EnvInfraError(str(error)) from error
            self._fresh_key, self._session, self.is_starting = session.world_key, session, False
        return self._session

    async def start_from(self, snapshot: ServerSnapshot) -> None:
        """Starts the server from a snapshot. Raises EnvInfraError; CannotFork if its fresh state is not known."""
        start = self._start
        with cache_errors():
            baseline = baseline_store().get(self._identity)
        opening = snapshot.open(start.sandbox, initial_state=start.initial_state, seed=start.seed, task=start.task)
        session = await self._stack.enter_async_context(run_in_own_task(opening))
        await session.update()
        if session.has_observable_state and baseline is None:
            raise CannotFork(f"server '{self.spec.name}': its baseline is gone from the cache")
        self._fresh_key = (
            baseline if session.has_observable_state and baseline is not None else _fresh_key_without_state(session)
        )
        self._session = session

    def _check_tools(self, session: ToolSession) -> None:
        if session.tools == self.tools or hash_tool_list(session.tools) == hash_tool_list(self.tools):
            return  # the order does not matter
        evict_tools(self.spec)
        store_tools(self.spec, session.tools)
        raise EnvInfraError(
            f"server '{self.spec.name}': list: it has other tools than when it was last started, on which this episode "
            "was built; the next one starts from the new list. Tools of a lazy environment's servers must not depend "
            "on a task's initial state"
        )

    async def _verify_fresh(self, session: ToolSession) -> None:
        """Compares the fresh state with its baseline. Raises DirtyReset."""
        fresh = FreshState(
            identity=self._identity,
            key=session.world_key,
            names={"env": f"server {self.spec.name}", "version": "", "task": self._start.task},
            subject=f"server '{self.spec.name}', started for task '{self._start.task}'",
            advice=ADVICE,
        )
        await verify_fresh(fresh, self._open_witness)

    @contextlib.asynccontextmanager
    async def _open_witness(self) -> AsyncIterator[str]:
        async with run_in_own_task(self._start.open_session(seed=self._start.seed + 1)) as witness:
            await witness.update()
            yield witness.world_key


def _fresh_key_without_state(session: ToolSession) -> str:
    """Fresh key of a server that does not give its state.

    For a log of calls it is "", which is no log's digest: a server that has a snapshot was called, so it has changed.
    """
    return session.world_key if session.key_identifies_state else ""
