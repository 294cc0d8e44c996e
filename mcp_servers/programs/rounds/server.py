"""A round of parcels, each of which needs one of eight tools, as an MCP server without any task or answer.

A task's initial state is ``{"parcels": [name, ...], "house": number}``. Every tool answers with what is before the
agent now and nothing else, in the same words whether the agent came, stayed or came back.
"""

from __future__ import annotations

from collections.abc import Sequence

from gymcp.mcp_servers.native.runtime import class_server
from gymcp.mcp_servers.programs.rounds.house import (
    ASIDE,
    BACK,
    END,
    NONE_LEFT,
    PARCELS,
    RIGHT,
    ROUND_OVER,
    SEALED_PARCEL,
    SPOIL,
    describe_parcel,
    describe_room,
    make_house,
)


class Rounds:
    """Public methods are the tools; the public attributes are the state, which decides all that can follow."""

    def __init__(self, parcels: Sequence[str] = PARCELS[:1], house: int = 0) -> None:
        self._house = make_house(house)
        self._sealed: frozenset[str] = frozenset()
        self.parcels = list(parcels)
        self.at = 0
        """Number of the parcels that have got their tool."""
        self.aside: list[str] = []
        """The side room and the tool that led there; empty at a parcel."""
        self.spoiled = False
        self.over = False

    def wash(self) -> str:
        """Wash what is before you."""
        return self._use("wash")

    def press(self) -> str:
        """Press what is before you."""
        return self._use("press")

    def fold(self) -> str:
        """Fold what is before you."""
        return self._use("fold")

    def weigh(self) -> str:
        """Weigh what is before you."""
        return self._use("weigh")

    def seal(self) -> str:
        """Seal what is before you."""
        return self._use("seal")

    def label(self) -> str:
        """Label what is before you."""
        return self._use("label")

    def dye(self) -> str:
        """Dye what is before you."""
        return self._use("dye")

    def send(self) -> str:
        """Send what is before you."""
        return self._use("send")

    def _use(self, tool: str) -> str:
        if self.aside:
            if tool == self._house.ways_back[self.aside[0]]:
                self.aside = []
        elif not self.over and self.at < len(self.parcels):
            self._treat(self.parcels[self.at], tool)
        return self._answer()

    def _treat(self, parcel: str, tool: str) -> None:
        effect = self._house.effects[parcel][tool]
        if effect == RIGHT:
            self.at += 1
        elif effect == ASIDE:
            self.aside = [self._house.side_rooms[parcel][tool], tool]
        elif effect == BACK:
            self.at = max(self.at - 1, 0)
        elif effect == SPOIL:
            self.spoiled = True
        elif effect == END:
            self.over = True

    def _answer(self, *, looking: bool = False) -> str:
        """Words for the place of the agent; a sealed parcel shows its name only to an agent that is looking."""
        if self.over:
            return ROUND_OVER
        if self.aside:
            return describe_room(self.aside[0])
        if self.at == len(self.parcels):
            return NONE_LEFT
        parcel = self.parcels[self.at]
        return SEALED_PARCEL if parcel in self._sealed and not looking else describe_parcel(parcel)


def main() -> None:
    class_server(Rounds, "rounds").run()
