"""Copies of live worlds, and points of episodes to go on from."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gymcp.envs.episodes.world import Origin, World
from gymcp.mcp_servers.snapshots.server_snapshot import ServerSnapshot, snapshot_server
from gymcp.types import Json, Observation, Step

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldImage:
    """A world that stands still: live ones can be made from it, at the same time. Each server has a way of its own."""

    servers: Mapping[str, ServerSnapshot]

    def discard(self) -> None:
        """Frees what it holds. Harmless when called again."""
        for image in self.servers.values():
            image.discard()


async def capture(world: World, opens: int | None) -> WorldImage | None:
    """To be opened `opens` times, None: any number. No image where there is none of some server.

    Raises SnapshotError.
    """
    images: dict[str, ServerSnapshot] = {}
    whole = WorldImage(servers=images)
    try:
        for session in world.sessions:  # one that was not started yet is started later, too
            image = await snapshot_server(session, opens)
            if image is None:  # a fork more or less is cheaper than to ask all servers twice
                whole.discard()
                return None
            images[session.spec.name] = image
    except BaseException:
        whole.discard()
        raise
    return whole


async def all_of(work: Sequence[Coroutine[None, None, T]]) -> list[T]:
    """The results, all awaited at the same time; returns or raises when the last has ended.

    A TaskGroup would cancel the calling task meanwhile, which the cancel scopes of its MCP sessions take for theirs.
    """
    tasks = [asyncio.create_task(each) for each in work]
    try:
        if tasks:
            await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A point of an episode to go on from, again and again. It outlives the episode, until `discard`."""

    episode: str
    """The id of the episode it was taken from."""
    origin: Origin
    initial_key: str
    world_key: str
    image: WorldImage | None
    """None: its calls are run again on a fresh world."""
    told: bool
    """False where a server's answers must agree, too, because nothing else is known of it."""
    observation: Observation
    steps: tuple[Step, ...]
    states: Mapping[str, Json]
    turn: int
    turn_steps: int
    agent_s: float
    history: str

    def discard(self) -> None:
        if self.image is not None:
            self.image.discard()


def parted(snapshot: Snapshot, number: int, expected: str, found: str) -> str:
    """What to say of a replay that became another world at a step, counted from 1; 0 is the reset."""
    calls = snapshot.steps[number - 1].action.tool_calls if number else ()
    at = f"step {number} ({', '.join(call.name for call in calls) or 'no call'})" if number else "the reset"
    return (
        f"task '{snapshot.origin.task.id}': a replay parts from the record at {at}: expected {expected}, found {found}"
    )
