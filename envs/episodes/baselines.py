"""Baselines: the digest that a task's fresh world must have, believed once two worlds in walls of their own agreed.

The first episode of a task opens a second world beside its own, with another seed, before anyone acts: one reset more,
once per task and machine. It is kept in gymcp's cache under what the world is made of: environment and version, suite
and version, task and its initial state, servers, sandbox. Afterwards a reset costs one look into a dictionary.

Taking the first two episodes as the two worlds would save that reset, but the first could not be scored until a second
had come, and in a run of one trial none comes.
"""

from __future__ import annotations

import dataclasses

from gymcp.cache import cache_errors
from gymcp.envs.episodes.baseline_store import baseline_book
from gymcp.envs.episodes.world import Origin, World, open_world, servers_of
from gymcp.errors import DirtyReset
from gymcp.keyed_lock import turn
from gymcp.mcp_servers.digest import DigestMemo, digest
from gymcp.mcp_servers.sandbox import interpreter
from gymcp.mcp_servers.workspaces.digester import digest_program
from gymcp.types import Json

_content = DigestMemo()


async def check_baseline(world: World) -> None:
    """Compares a fresh world with its task's baseline; makes one where there is none. Raises DirtyReset."""
    if world.origin.env.spec.lazy or not any(session.has_observable_state for session in world.sessions):
        return  # there is nothing to compare; a lazy server is when it starts (`gymcp.envs.episodes.lazy_server`)
    origin = world.origin
    book, identity = baseline_book(), _identity(origin)
    with cache_errors():
        expected = book.get(identity)
    if expected is None:
        async with turn(identity):
            with cache_errors():
                expected = book.get(identity)
            expected = expected or await _witnessed(world, identity)
    if expected != world.key:
        raise DirtyReset(_say(origin, "the reset is not clean", expected, world.key))


async def _witnessed(world: World, identity: str) -> str:
    """The baseline, once a second fresh world agrees with this one."""
    origin = world.origin
    async with open_world(dataclasses.replace(origin, seed=origin.seed + 1)) as witness:
        if witness.key != world.key:
            raise DirtyReset(_say(origin, "two fresh worlds differ", world.key, witness.key))
    names = {"env": origin.env.spec.name, "version": origin.env.spec.version, "task": origin.task.id}
    with cache_errors():
        return baseline_book().add(identity, world.key, names)


def _say(origin: Origin, what: str, expected: str, found: str) -> str:
    spec = origin.env.spec
    where = f"environment '{spec.name}' version {spec.version}, task '{origin.task.id}'"
    return (
        f"{where}: {what}: expected {expected}, found {found}. A server keeps something outside its world, or starts "
        "from time, chance or the seed; mask what may differ. Where servers or tasks have changed on purpose, bump the "
        "version of the environment or the suite"
    )


def _identity(origin: Origin) -> str:
    env, task = origin.env, origin.task
    parts: list[Json] = [env.spec.name, env.spec.version, env.suite.name, env.suite.version, task.id]
    parts += [_content(task.initial_state), origin.sandbox.name, interpreter().version, digest_program()]
    parts += [server.parts() for server in servers_of(origin)]
    return digest(parts)
