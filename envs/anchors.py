"""Anchors: what two steps of one task must share to be compared by step-level credit.

Source: GiGPO, arXiv:2505.10978, which compares steps taken in the same state.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

from gymcp.mcp_servers.digest import digest
from gymcp.types import Observation

StateAnchor = Literal["world", "world+observation", "world+history"]
"""Parts of an anchor beside task and user turn: the state of the world, alone or with the last or all observations."""


def anchor_parts(
    anchor: StateAnchor, turn: int, world_key: str, observation: Observation, history: str
) -> tuple[Hashable, ...]:
    """The parts that two steps of a task must share. `history`: digest of all observations up to this one."""
    match anchor:
        case "world":
            return turn, world_key
        case "world+observation":
            return turn, world_key, read_texts(observation)
        case "world+history":
            return turn, world_key, history


def extend_history(history: str, observation: Observation) -> str:
    """Digest of the observations behind `history` and of this one; "" stands for no observation."""
    return digest([history, read_texts(observation)])


def read_texts(observation: Observation) -> tuple[tuple[str, str], ...]:
    """(role, text) of each message of an observation."""
    return tuple((message.role, message.content) for message in observation.messages)
