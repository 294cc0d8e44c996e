"""Baselines: the digest that a task's fresh world must have, believed once two worlds in walls of their own agreed.

The first episode of a task opens a second world beside its own, with another seed, before anyone acts: one reset more,
once per task and machine. It is kept in gymcp's cache under what the world is made of: environment and version, suite
and version, task and its initial state, servers, sandbox. Afterwards a reset costs one look into a dictionary.

Taking the first two episodes as the two worlds would save that reset, but the first could not be scored until a second
had come, and in a run of one trial none comes.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path

from gymcp.cache import in_cache
from gymcp.envs.world import Origin, World, open_world
from gymcp.errors import DirtyReset
from gymcp.mcp_servers.digest import DigestMemo, digest
from gymcp.mcp_servers.sandbox import interpreter
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.worlds.digester import digest_program
from gymcp.paths import gymcp_home
from gymcp.types import Json

_content = DigestMemo()


async def check_baseline(world: World) -> None:
    """Compares a fresh world with its task's baseline; makes one where there is none. Raises DirtyReset."""
    if not any(session.tells_state for session in world.sessions):
        return  # there is nothing to compare
    origin = world.origin
    book, identity = _book(gymcp_home() / "baselines"), _identity(origin)
    with in_cache():
        expected = book.get(identity)
    if expected is None:
        async with open_world(dataclasses.replace(origin, seed=origin.seed + 1)) as witness:
            if witness.key != world.key:
                raise DirtyReset(_say(origin, "two fresh worlds differ", world.key, witness.key))
        names = {"env": origin.env.spec.name, "version": origin.env.spec.version, "task": origin.task.id}
        with in_cache():
            expected = book.add(identity, world.key, names)
    if expected != world.key:
        raise DirtyReset(_say(origin, "the reset is not clean", expected, world.key))


def _say(origin: Origin, what: str, expected: str, found: str) -> str:
    spec = origin.env.spec
    where = f"environment '{spec.name}' version {spec.version}, task '{origin.task.id}'"
    return (
        f"{where}: {what}: expected {expected}, found {found}. A server keeps something outside its world, or starts "
        "from time, chance or the seed; mask what may differ. Where servers or tasks have changed on purpose, bump the "
        "version of the environment or the suite"
    )


class BaselineBook:
    """Baselines in a file of JSON lines that several processes may add to; the first that was believed counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] = {}
        self._read_to = 0

    def get(self, identity: str) -> str | None:
        """The world key of the baseline; None where there is none yet."""
        if identity not in self._known and self._path.exists():
            with self._path.open("rb") as file:
                self._read(file.fileno())
        return self._known.get(identity)

    def add(self, identity: str, world_key: str, names: dict[str, str]) -> str:
        """The baseline as it is recorded now: another process may have been first."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._read(file.fileno())
            if identity not in self._known:
                line = json.dumps({"id": identity, "world_key": world_key, **names})
                torn = self._read_to < os.fstat(file.fileno()).st_size
                file.write(b"\n" * torn + line.encode() + b"\n")
                file.flush()
                self._read(file.fileno())
        return self._known[identity]

    def _read(self, fd: int) -> None:
        """What has come since; a line without an end is left: another process may be writing it."""
        data = os.pread(fd, max(0, os.fstat(fd).st_size - self._read_to), self._read_to)
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for record in _records(whole):
            self._known.setdefault(record["id"], record["world_key"])


def _records(lines: bytes) -> Iterator[dict[str, str]]:
    for line in lines.splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # torn by a crash
            continue
        if isinstance(record, dict) and isinstance(record.get("id"), str) and isinstance(record.get("world_key"), str):
            yield record


@functools.cache
def _book(folder: Path) -> BaselineBook:
    return BaselineBook(folder / "baselines.jsonl")


def _identity(origin: Origin) -> str:
    env, task = origin.env, origin.task
    parts: list[Json] = [env.spec.name, env.spec.version, env.suite.name, env.suite.version, task.id]
    parts += [_content(task.initial_state), origin.sandbox.name, interpreter().version, digest_program()]
    parts += [server.parts() for server in env.servers]
    return digest(parts)
