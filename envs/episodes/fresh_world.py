"""The proof that a fresh world is its task's baseline.

The baseline of a world is kept under the environment and its version, the suite and its version, the task and its
initial state, the servers, and the sandbox.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from gymcp.envs.episodes.baselines import FreshState, verify_fresh
from gymcp.envs.episodes.world import EpisodeSetup, World, open_world, task_servers
from gymcp.mcp_servers.digest import DigestMemo, digest
from gymcp.mcp_servers.sandbox import interpreter
from gymcp.mcp_servers.workspaces.digester import digest_program
from gymcp.types import Json

ADVICE = (
    "A server keeps something outside its world, or starts from time, chance or the seed; mask what may differ. Where "
    "servers or tasks have changed on purpose, bump the version of the environment or the suite"
)
"""Likely causes of a world that is not its baseline."""
_digest_once = DigestMemo()


async def verify_fresh_world(world: World) -> None:
    """Compares a fresh world with its task's baseline, and makes the baseline if there is none. Raises DirtyReset."""
    setup = world.setup
    spec = setup.env.spec
    if spec.lazy or not any(session.has_observable_state for session in world.sessions):
        return  # nothing to compare yet: a lazy server is compared when it starts (`gymcp.envs.episodes.lazy_server`)
    fresh = FreshState(
        identity=_identify(setup),
        key=world.key,
        names={"env": spec.name, "version": spec.version, "task": setup.task.id},
        subject=f"environment '{spec.name}' version {spec.version}, task '{setup.task.id}'",
        advice=ADVICE,
    )

    @contextlib.asynccontextmanager
    async def open_witness() -> AsyncIterator[str]:
        async with open_world(replace(setup, seed=setup.seed + 1)) as witness:
            yield witness.key

    await verify_fresh(fresh, open_witness)


def _identify(setup: EpisodeSetup) -> str:
    env, task = setup.env, setup.task
    parts: list[Json] = [env.spec.name, env.spec.version, env.suite.name, env.suite.version, task.id]
    parts += [_digest_once(task.initial_state), setup.sandbox.name, interpreter().version, digest_program()]
    parts += [server.parts() for server in task_servers(setup)]
    return digest(parts)
