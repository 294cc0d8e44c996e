"""Worlds brought back to a snapshot: opened from its servers' snapshots, or by a replay of the recorded calls."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

from gymcp.aio import run_in_own_task
from gymcp.envs.episodes.episode_state import EpisodeState
from gymcp.envs.episodes.live_world import LiveWorld, make_live_world
from gymcp.envs.episodes.snapshots import Snapshot
from gymcp.envs.episodes.user_turn import UserSession
from gymcp.envs.worlds.world import EpisodeSetup, World, open_world
from gymcp.errors import CannotFork, SnapshotError
from gymcp.types import Json, Step, ToolResult


async def restore_world(
    snapshot: Snapshot,
    setup: EpisodeSetup,
    user: UserSession,
    servers: contextlib.AsyncExitStack,
    states: dict[str, Json],
    paid: list[float],
) -> LiveWorld:
    """A live world in the snapshot's state, in the sandbox of `setup`, for the episode with this setup and user.

    `servers` closes the world. `states` receives the recorded states, `paid` the cost of the calls of each step that is
    replayed. Raises SnapshotError, EnvInfraError.
    """
    source = replace(snapshot.setup, sandbox=setup.sandbox)
    world = await _open_snapshot(snapshot, source, servers, states)
    if world is not None:
        return make_live_world(setup, world, user)
    world = await servers.enter_async_context(run_in_own_task(open_world(source, states=states)))
    live = make_live_world(setup, world, user)
    await _replay(snapshot, live, paid)
    return live


async def open_beside(
    snapshot: Snapshot, setup: EpisodeSetup, user: UserSession, states: dict[str, Json], paid: list[float]
) -> tuple[LiveWorld, contextlib.AsyncExitStack]:
    """A world as `restore_world` makes it, while the episode's own goes on, and what closes it."""
    servers = contextlib.AsyncExitStack()
    try:
        return await restore_world(snapshot, setup, user, servers, states, paid), servers
    except BaseException:
        await servers.aclose()
        raise


async def _open_snapshot(
    snapshot: Snapshot, source: EpisodeSetup, servers: contextlib.AsyncExitStack, states: dict[str, Json]
) -> World | None:
    """None if the world has no snapshot, if it can no longer be opened, or if its servers are in another state."""
    if snapshot.world is None:
        return None
    opening = open_world(source, snapshot.world.servers, states=states)
    try:
        world = await servers.enter_async_context(run_in_own_task(opening))
    except CannotFork:
        return None
    if world.key != snapshot.state.world_key:
        await servers.aclose()
        return None
    return world


async def _replay(snapshot: Snapshot, live: LiveWorld, paid: list[float]) -> None:
    """Runs the recorded calls on a fresh world, which must have the recorded key after every step."""
    steps, world = snapshot.state.steps, live.world
    state = EpisodeState(initial_key=snapshot.state.initial_key)
    if world.key != state.initial_key:
        raise SnapshotError(_describe_divergence(snapshot, 0, state.initial_key, world.key))
    for number, step in enumerate(steps, start=1):
        state = replace(state, steps=steps[: number - 1], turn=step.turn, observation=step.observation)
        results = await _run_again(step, state, live)
        paid.append(math.fsum(result.cost for result in results))
        recorded = [*step.results, *(result for tool_calls in step.user_acts for result in tool_calls.results)]
        await world.update()
        if world.key != step.world_key:
            raise SnapshotError(_describe_divergence(snapshot, number, step.world_key, world.key))
        if not snapshot.has_exact_key and [r.content for r in results] != [r.content for r in recorded]:
            raise SnapshotError(_describe_divergence(snapshot, number, "the answers of the record", "others"))


async def _run_again(step: Step, state: EpisodeState, live: LiveWorld) -> list[ToolResult]:
    """Results of the step's calls, first the agent's, then the user's."""
    context = live.context(state)
    tools = live.pipeline.tools_per_layer(context)
    results = [
        await live.run_call(state, replace(context, index=index), call, tools)
        for index, call in enumerate(step.action.tool_calls)
    ]
    for tool_calls in step.user_acts:
        results += [await live.run_user_call(call) for call in tool_calls.calls]
    return results


def _describe_divergence(snapshot: Snapshot, number: int, expected: str, found: str) -> str:
    """Error message for a replay that differs from the record at a step, counted from 1; 0 is the reset."""
    calls = snapshot.state.steps[number - 1].action.tool_calls if number else ()
    at = f"step {number} ({', '.join(call.name for call in calls) or 'no call'})" if number else "the reset"
    return (
        f"task '{snapshot.setup.task.id}': a replay parts from the record at {at}: expected {expected}, found {found}"
    )
