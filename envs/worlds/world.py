"""The world of an episode: its servers, a digest of their state after every step, and a copy of every state seen."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.lazy_server import LazyServer, ServerStart
from gymcp.envs.worlds.server_losses import UNTRIED, Attempts
from gymcp.errors import Undigestible
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.machine_limits import count_oom_kills
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.sessions.tool_list_cache import load_tool_lists
from gymcp.mcp_servers.snapshots.server_snapshot import ServerSnapshot
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json, Task

_ATTEMPTS = 5
"""Attempts to read digest and state without a change between the two."""

ServerSnapshots = Mapping[str, ServerSnapshot]
"""Server name -> the snapshot to start the server from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSetup:
    """Everything that a fresh world is made from."""

    env: LoadedEnv
    sandbox: Sandbox
    task: Task
    seed: int
    attempts: Attempts = UNTRIED
    """The attempts at the episode, of which this is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldState:
    """Identity of the state that a world is in."""

    key: str = ""
    """Digest of the states of all servers; with a single server, that server's digest."""
    ref: str | None = None
    """Content address of the recorded state; None if no server gives its state."""


def task_servers(setup: EpisodeSetup) -> tuple[ServerSpec, ...]:
    """The servers of the environment that the task uses."""
    names = setup.task.offer.servers
    return tuple(server for server in setup.env.servers if names is None or server.name in names)


class World:
    """The servers of an episode, and the state of all of them together. Made by `open_world`."""

    def __init__(
        self, setup: EpisodeSetup, servers: Sequence[ToolSession | LazyServer], states: dict[str, Json]
    ) -> None:
        self.setup = setup
        self.servers = servers
        self.state = WorldState()
        """The state at the last `update`. Set it back if the servers' present state cannot be read."""
        self._states = states
        self._refs: dict[str, str] = {}
        """Digest of the servers that give their state -> content address of the recorded state."""
        self._oom_kills = count_oom_kills()

    @property
    def key(self) -> str:
        """Digest of the present state."""
        return self.state.key

    @property
    def sessions(self) -> list[ToolSession]:
        """Sessions with the servers that have been started."""
        sessions = (server.session if isinstance(server, LazyServer) else server for server in self.servers)
        return [session for session in sessions if session is not None]

    @property
    def has_exact_key(self) -> bool:
        """True if equal keys mean equal worlds; the key of an opaque server is a log of calls, not a state."""
        return all(session.key_identifies_state for session in self.sessions)

    @property
    def excuses_losses(self) -> bool:
        """True if the loss of a server now may have another cause than the agent.

        A server elsewhere may be out of reach; one may not have started; the kernel may have ended one for lack of
        memory of the machine.
        """
        is_starting = any(isinstance(server, LazyServer) and server.is_starting for server in self.servers)
        is_remote = any(server.url is not None for server in task_servers(self.setup))
        return is_starting or is_remote or count_oom_kills() > self._oom_kills

    async def update(self) -> None:
        """Reads what the last calls changed. A state seen before in the episode is not fetched again.

        Raises Undigestible if a state has no digest or cannot be recorded; `state` then remains the last known one.
        """
        for server in self.servers:
            await server.update()
        await self._settle()

    async def verify_state(self) -> None:
        """Reads the state itself instead of trusting keys and times, at the end of a user turn or of an episode.

        This detects a server that sends the key of a state it has left. Raises ProtocolError, Undigestible.
        """
        for server in self.servers:
            if isinstance(server, LazyServer) or server.has_observable_state:
                await server.confirm()
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(_ATTEMPTS):
            keys = self._server_keys()
            key = next(iter(keys.values())) if len(keys) == 1 else digest(keys)
            if key == self.state.key:
                return
            ref = await self._record_state()
            if self._server_keys() == keys:  # if not, files changed between digest and state
                self.state = WorldState(key=key, ref=ref)
                return
        raise Undigestible("the state of the servers changes while no call is running")

    def _server_keys(self) -> dict[str, str]:
        return {server.spec.name: server.world_key for server in self.servers}

    async def _record_state(self) -> str | None:
        """Content address of the state, which it records if it is new.

        In a lazy environment the record holds only the servers whose state has changed: none at first.
        """
        lazy = self.setup.env.spec.lazy
        telling = [server for server in self.servers if server.has_observable_state]
        if not telling and not lazy:
            return self.state.ref
        key = digest({server.spec.name: server.world_key for server in telling})
        if key not in self._refs:
            parts = {server.spec.name: await server.state() for server in telling}
            key = digest({server.spec.name: server.world_key for server in telling})
            if len(self.setup.env.servers) == 1 and not lazy:
                ((address, state),) = parts.values()
            else:
                address = digest({name: part for name, (part, _) in parts.items()})
                state = {name: part for name, (_, part) in parts.items()}
            self._refs[key] = address
            self._states[address] = state
        return self._refs[key]


@contextlib.asynccontextmanager
async def open_world(
    setup: EpisodeSetup, snapshots: ServerSnapshots | None = None, *, states: dict[str, Json] | None = None
) -> AsyncIterator[World]:
    """New server processes on a fresh state, or on the snapshots of all servers; nothing remains on the way out.

    In a lazy environment, servers without a snapshot start at their first call. The world adds each state that it
    records to `states`, by content address. Enter and leave the context in the same task. Raises EnvInfraError if a
    server does not start.
    """
    async with contextlib.AsyncExitStack() as stack:
        servers = await (_prepare_lazy if setup.env.spec.lazy else _start_all)(setup, snapshots, stack)
        world = World(setup, servers, {} if states is None else states)
        await world.update()
        yield world


async def _start_all(
    setup: EpisodeSetup, snapshots: ServerSnapshots | None, stack: contextlib.AsyncExitStack
) -> list[ToolSession | LazyServer]:
    sessions: list[ToolSession | LazyServer] = []
    for server in task_servers(setup):
        open_server = partial(open_session, server) if snapshots is None else snapshots[server.name].open
        state = initial_state_for(setup, server)
        session = open_server(setup.sandbox, initial_state=state, seed=setup.seed, task=setup.task.id)
        sessions.append(await stack.enter_async_context(session))
    return sessions


async def _prepare_lazy(
    setup: EpisodeSetup, snapshots: ServerSnapshots | None, stack: contextlib.AsyncExitStack
) -> list[ToolSession | LazyServer]:
    tool_lists = await load_tool_lists(task_servers(setup), setup.sandbox)
    servers: list[ToolSession | LazyServer] = []
    for spec in task_servers(setup):
        start = ServerStart(
            server=spec,
            sandbox=setup.sandbox,
            initial_state=initial_state_for(setup, spec),
            seed=setup.seed,
            task=setup.task.id,
        )
        server = LazyServer(start, tool_lists[spec.name], stack)
        if snapshots is not None and spec.name in snapshots:
            await server.start_from(snapshots[spec.name])
        servers.append(server)
    return servers


def initial_state_for(setup: EpisodeSetup, server: ServerSpec) -> Json:
    """The server's initial state by the task or, if the task gives none, by the server's spec."""
    state = setup.task.initial_state
    if len(setup.env.servers) > 1 or setup.env.spec.lazy:
        state = state.get(server.name) if isinstance(state, Mapping) else None
    return server.initial_state if state is None else state
