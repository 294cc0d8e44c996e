"""Snapshots of live worlds, and of episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gymcp.envs.episodes.episode_state import EpisodeState
from gymcp.envs.worlds.world import EpisodeSetup, World
from gymcp.mcp_servers.snapshots.server_snapshot import ServerSnapshot, snapshot_server
from gymcp.types import Json

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSnapshot:
    """Snapshots of all servers of a world, from which live worlds can be opened at the same time."""

    servers: Mapping[str, ServerSnapshot]
    """Server name -> its snapshot."""

    def discard(self) -> None:
        """Frees the resources of the snapshots. Harmless when called again."""
        for each in self.servers.values():
            each.discard()


async def snapshot_world(world: World, opens: int | None) -> WorldSnapshot | None:
    """A snapshot of the world; None if some server has none.

    `opens`: how often the snapshot will be opened, None: any number of times. Raises SnapshotError.
    """
    servers: dict[str, ServerSnapshot] = {}
    snapshot = WorldSnapshot(servers=servers)
    try:
        # a lazy server that has not been started is started by its first call later, too
        for session in world.sessions:
            captured = await snapshot_server(session, opens)
            if captured is None:  # one fork more or less is cheaper than to ask all servers twice
                snapshot.discard()
                return None
            servers[session.spec.name] = captured
    except BaseException:
        snapshot.discard()
        raise
    return snapshot


async def wait_for_all(work: Sequence[Coroutine[None, None, T]]) -> list[T]:
    """The results of all coroutines, which run at the same time; returns or raises when the last one has ended.

    A TaskGroup would cancel the calling task on the first error, which the cancel scopes of its MCP sessions would take
    for a cancellation of their own.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
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
    """A point of an episode from which it can be continued any number of times. It outlives the episode.

    It holds resources until `discard`.
    """

    episode: str
    """Id of the episode that the snapshot was taken from."""
    setup: EpisodeSetup
    state: EpisodeState
    world: WorldSnapshot | None
    """Snapshot of the world; None: the recorded calls are replayed on a fresh world."""
    has_exact_key: bool
    """False if a replay must also give the recorded answers, because the world key covers only a log of calls."""
    states: Mapping[str, Json]
    """States that the steps refer to, by content address."""

    def discard(self) -> None:
        if self.world is not None:
            self.world.discard()


def make_recorded_point(episode: str, world: World, state: EpisodeState, states: Mapping[str, Json]) -> Snapshot:
    """A point that an episode has passed, from its record alone: its calls are replayed on a fresh world.

    `state`: that of the episode at the point. `states`: those that the record refers to, by content address.
    """
    return Snapshot(
        episode=episode,
        setup=world.setup,
        state=state,
        world=None,
        has_exact_key=world.has_exact_key,
        states=dict(states),
    )
