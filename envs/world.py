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
        """Content address of the declared state; None where no server declares one."""
        self.states: dict[str, Json] = {}
        self._refs: dict[str, str] = {}
        self._sessions = sessions
        self._declared = [session for session in sessions if session.spec.state == "declared"]

    async def update(self) -> None:
        """Takes note of what the last calls changed; a state seen before in the episode is not fetched again."""
        keys = {session.spec.name: session.world_key for session in self._sessions}
        key = next(iter(keys.values())) if len(keys) == 1 else digest(keys)
        if key == self.key:
            return
        self.key = key
        if not self._declared:
            return
        declared_key = digest({session.spec.name: session.world_key for session in self._declared})
        if declared_key not in self._refs:
            parts = {session.spec.name: await session.state() for session in self._declared}
            state = next(iter(parts.values())) if len(self._sessions) == 1 else parts
            self._refs[declared_key] = digest(state)
            self.states[self._refs[declared_key]] = state
        self.state_ref = self._refs[declared_key]
