"""What the harness knows of an episode's world: a digest after every step, and a copy of every state it was in."""

from __future__ import annotations

from collections.abc import Sequence

from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.session import ToolSession
from gymcp.types import Json


class World:
    """The state of all servers of an episode together."""

    def __init__(self, sessions: Sequence[ToolSession]) -> None:
        self.key = ""
        """Digest of the whole; of one server alone, that server's."""
        self.state_ref: str | None = None
        """Content address of the recorded state; None where no server tells one."""
        self.states: dict[str, Json] = {}
        self._refs: dict[str, str] = {}
        self._sessions = sessions
        self._telling = [session for session in sessions if session.tells_state]

    async def update(self) -> None:
        """Takes note of what the last calls changed; a state seen before in the episode is not fetched again.

        Raises EnvInfraError where files have no digest.
        """
        for session in self._sessions:
            await session.update()
        keys = {session.spec.name: session.world_key for session in self._sessions}
        key = next(iter(keys.values())) if len(keys) == 1 else digest(keys)
        if key == self.key:
            return
        self.key = key
        if not self._telling:
            return
        telling_key = digest({session.spec.name: session.world_key for session in self._telling})
        if telling_key not in self._refs:
            parts = {session.spec.name: await session.state() for session in self._telling}
            state = next(iter(parts.values())) if len(self._sessions) == 1 else parts
            self._refs[telling_key] = digest(state)
            self.states[self._refs[telling_key]] = state
        self.state_ref = self._refs[telling_key]
