"""What the harness knows of an episode's world: a digest after every step, and a copy of every state it was in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.images import ServerImage
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.session import ToolSession, open_session
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

    def __init__(self, origin: Origin, sessions: Sequence[ToolSession]) -> None:
        self.origin = origin
        self.sessions = sessions
        self.key = ""
        """Digest of the whole; of one server alone, that server's."""
        self.state_ref: str | None = None
        """Content address of the recorded state; None where no server tells one."""
        self.states: dict[str, Json] = {}
        self._refs: dict[str, str] = {}
        self._telling = [session for session in sessions if session.tells_state]

    @property
    def is_told(self) -> bool:
        """True where equal keys mean equal worlds; a log of calls is not a state."""
        return all(session.spec.state != "opaque" for session in self.sessions)

    async def update(self) -> None:
        """Takes note of what the last calls changed; a state seen before in the episode is not fetched again.

        Raises EnvInfraError where files have no digest.
        """
        for session in self.sessions:
            await session.update()
        for _ in range(_ATTEMPTS):
            keys = self._keys()
            key = next(iter(keys.values())) if len(keys) == 1 else digest(keys)
            if key == self.key:
                return
            await self._record_state()
            if self._keys() == keys:  # else files changed between digest and state
                self.key = key
                return
        raise EnvInfraError("the state of the servers changes while no call is running")

    async def confirm(self) -> None:
        """Compares what servers declare with what they claim, after the last call of a user turn or an episode.

        A server that sends the key of a state it has left is found out here; raises ProtocolError.
        """
        for session in self._telling:
            await session.confirm()

    def _keys(self) -> dict[str, str]:
        return {session.spec.name: session.world_key for session in self.sessions}

    async def _record_state(self) -> None:
        if not self._telling:
            return
        telling_key = digest({session.spec.name: session.world_key for session in self._telling})
        if telling_key not in self._refs:
            told = {session.spec.name: await session.state() for session in self._telling}
            telling_key = digest({session.spec.name: session.world_key for session in self._telling})
            if len(self.origin.env.servers) == 1:
                ((address, state),) = told.values()
            else:
                address = digest({name: part for name, (part, _) in told.items()})
                state = {name: part for name, (_, part) in told.items()}
            self._refs[telling_key] = address
            self.states[address] = state
        self.state_ref = self._refs[telling_key]


@contextlib.asynccontextmanager
async def open_world(origin: Origin, images: Mapping[str, ServerImage] | None = None) -> AsyncIterator[World]:
    """New server processes on a fresh state, or on the images of all servers; nothing remains on the way out.

    Enter and leave it in the same task. Raises EnvInfraError where a server does not start.
    """
    servers, task = servers_of(origin), origin.task
    async with contextlib.AsyncExitStack() as stack:
        sessions = []
        for server in servers:
            state = task.initial_state
            if len(origin.env.servers) > 1:
                state = state.get(server.name) if isinstance(state, Mapping) else None
            open_server = partial(open_session, server) if images is None else images[server.name].open
            session = open_server(origin.sandbox, initial_state=state, seed=origin.seed, task=task.id)
            sessions.append(await stack.enter_async_context(session))
        world = World(origin, sessions)
        await world.update()
        yield world
