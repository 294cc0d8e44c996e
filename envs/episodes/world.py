"""What the harness knows of an episode's world: a digest after every step, and a copy of every state it was in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gymcp.envs.episodes.lazy_server import LateServer, Start
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import Undigestible
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.sessions.tool_list_cache import load_tool_lists
from gymcp.mcp_servers.snapshots.server_snapshot import ServerSnapshot
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json, Task

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a fresh world is made from."""

    env: LoadedEnv
    sandbox: Sandbox
    task: Task
    seed: int


def servers_of(origin: Origin) -> tuple[ServerSpec, ...]:
    """Those that the task has."""
    names = origin.task.servers
    return tuple(server for server in origin.env.servers if names is None or server.name in names)


class World:
    """The servers of an episode, and the state of all of them together. Made by `open_world`."""

    def __init__(self, origin: Origin, servers: Sequence[ToolSession | LateServer]) -> None:
        self.origin = origin
        self.servers = servers
        self.key = ""
        """Digest of the whole; of one server alone, that server's."""
        self.state_ref: str | None = None
        """Content address of the recorded state; None where no server tells one."""
        self.states: dict[str, Json] = {}
        self._refs: dict[str, str] = {}

    @property
    def sessions(self) -> list[ToolSession]:
        """Of the servers that were started."""
        found = (server.session if isinstance(server, LateServer) else server for server in self.servers)
        return [session for session in found if session is not None]

    @property
    def is_told(self) -> bool:
        """True where equal keys mean equal worlds; a log of calls is not a state."""
        return all(session.key_identifies_state for session in self.sessions)

    async def update(self) -> None:
        """Takes note of what the last calls changed; a state seen before in the episode is not fetched again.

        Raises Undigestible if a state has no digest or cannot be recorded; the world is then known as it was before.
        """
        for server in self.servers:
            await server.update()
        await self._settle()

    async def confirm(self) -> None:
        """Looks behind keys and times, after the last call of a user turn or an episode; takes note of what it finds.

        A server that sends the key of a state it has left is found out here; raises ProtocolError, Undigestible.
        """
        for server in self.servers:
            if isinstance(server, LateServer) or server.has_observable_state:
                await server.confirm()
        await self._settle()

    @property
    def known(self) -> tuple[str, str | None]:
        """The key and the address of the state, for `go_back`."""
        return self.key, self.state_ref

    def go_back(self, known: tuple[str, str | None]) -> None:
        """Makes it what was `known` before: nobody can tell what it is now."""
        self.key, self.state_ref = known

    async def _settle(self) -> None:
        for _ in range(_ATTEMPTS):
            keys = self._keys()
            key = next(iter(keys.values())) if len(keys) == 1 else digest(keys)
            if key == self.key:
                return
            state_ref = await self._recorded_state()
            if self._keys() == keys:  # else files changed between digest and state
                self.key, self.state_ref = key, state_ref
                return
        raise Undigestible("the state of the servers changes while no call is running")

    def _keys(self) -> dict[str, str]:
        return {server.spec.name: server.world_key for server in self.servers}

    async def _recorded_state(self) -> str | None:
        """Its address. Of an environment whose servers start late, those that have changed count: at first none."""
        lazy = self.origin.env.spec.lazy
        telling = [server for server in self.servers if server.has_observable_state]
        if not telling and not lazy:
            return self.state_ref
        telling_key = digest({server.spec.name: server.world_key for server in telling})
        if telling_key not in self._refs:
            told = {server.spec.name: await server.state() for server in telling}
            telling_key = digest({server.spec.name: server.world_key for server in telling})
            if len(self.origin.env.servers) == 1 and not lazy:
                ((address, state),) = told.values()
            else:
                address = digest({name: part for name, (part, _) in told.items()})
                state = {name: part for name, (_, part) in told.items()}
            self._refs[telling_key] = address
            self.states[address] = state
        return self._refs[telling_key]


@contextlib.asynccontextmanager
async def open_world(origin: Origin, images: Mapping[str, ServerSnapshot] | None = None) -> AsyncIterator[World]:
    """New server processes on a fresh state, or on the images of all servers; nothing remains on the way out.

    Of an environment that is lazy, servers without an image are started when they are called. Enter and leave it in the
    same task. Raises EnvInfraError where a server does not start.
    """
    async with contextlib.AsyncExitStack() as stack:
        servers = await (_late if origin.env.spec.lazy else _started)(origin, images, stack)
        world = World(origin, servers)
        await world.update()
        yield world


async def _started(
    origin: Origin, images: Mapping[str, ServerSnapshot] | None, stack: contextlib.AsyncExitStack
) -> list[ToolSession | LateServer]:
    sessions: list[ToolSession | LateServer] = []
    for server in servers_of(origin):
        open_server = partial(open_session, server) if images is None else images[server.name].open
        state = initial_state_of(origin, server)
        session = open_server(origin.sandbox, initial_state=state, seed=origin.seed, task=origin.task.id)
        sessions.append(await stack.enter_async_context(session))
    return sessions


async def _late(
    origin: Origin, images: Mapping[str, ServerSnapshot] | None, stack: contextlib.AsyncExitStack
) -> list[ToolSession | LateServer]:
    lists = await load_tool_lists(servers_of(origin), origin.sandbox)
    servers: list[ToolSession | LateServer] = []
    for spec in servers_of(origin):
        state = initial_state_of(origin, spec)
        start = Start(server=spec, sandbox=origin.sandbox, initial_state=state, seed=origin.seed, task=origin.task.id)
        server = LateServer(start, lists[spec.name], stack)
        if images is not None and spec.name in images:
            await server.resume(images[spec.name])
        servers.append(server)
    return servers


def initial_state_of(origin: Origin, server: ServerSpec) -> Json:
    """What the task says of the server; where it says nothing, what the server's spec does."""
    state = origin.task.initial_state
    if len(origin.env.servers) > 1 or origin.env.spec.lazy:
        state = state.get(server.name) if isinstance(state, Mapping) else None
    return server.initial_state if state is None else state
