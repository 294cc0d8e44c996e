"""The rounds with sealed parcels and a ninth tool that shows their names, as an MCP server."""

from __future__ import annotations

from collections.abc import Sequence

from gymcp.mcp_servers.native.runtime import class_server
from gymcp.mcp_servers.programs.rounds.house import PARCELS
from gymcp.mcp_servers.programs.rounds.server import Rounds


class Looks(Rounds):
    """Rounds in which a quarter of the names shows only to an agent that looks; looking changes no state."""

    def __init__(self, parcels: Sequence[str] = PARCELS[:1], house: int = 0) -> None:
        super().__init__(parcels, house)
        self._sealed = self._house.sealed

    def look(self) -> str:
        """Look at what is before you."""
        return self._answer(looking=True)


def main() -> None:
    class_server(Looks, "looks").run()
