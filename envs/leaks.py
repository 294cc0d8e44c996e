"""Can a server read the answers? Every file that is readable from inside is searched for every task's gold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.sandbox import Launch, Limits, Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Task

MIN_NEEDLE = 16
"""Characters. Shorter answers occur in system files by chance."""
SEARCH_TIMEOUT_S = 300.0
_GREP = ("grep", "-roaF", "-f", "/dev/stdin", "/", "--exclude-dir=proc", "--exclude-dir=sys", "--exclude-dir=dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    server: str
    file: str
    """As seen from inside; ``initial_state`` for what the harness hands over itself."""
    text: str
    """The piece of gold that was found."""


def needles(tasks: Iterable[Task]) -> set[str]:
    """The gold as it may be written down: calls as JSON and as Python, and final texts."""
    return {needle for task in tasks for needle in _needles(task) if len(needle) >= MIN_NEEDLE and "\n" not in needle}


def _needles(task: Task) -> Iterator[str]:
    for turn in task.gold:
        yield turn.final_text
        for call in turn.calls:
            if isinstance(call.arguments, str) or not call.arguments:
                continue
            arguments = dict(call.arguments)
            for separators in ((", ", ": "), (",", ":")):
                yield json.dumps(arguments, separators=separators)
            for comma in (", ", ","):
                yield f"{call.name}({comma.join(f'{name}={value!r}' for name, value in arguments.items())})"


async def find_leaks(env: LoadedEnv, sandbox: Sandbox) -> list[Leak]:
    """Every piece of gold that a server of the environment could read. Raises EnvInfraError where grep cannot run."""
    wanted = needles(env.suite.tasks)
    found = [
        Leak(server="*", file="initial_state", text=needle)
        for task in env.suite.tasks
        for needle in needles([task])
        if needle in json.dumps(task.initial_state)
    ]
    for server in env.servers:
        found += await _search(server, sandbox, wanted)
    return found


async def _search(server: ServerSpec, sandbox: Sandbox, wanted: set[str]) -> list[Leak]:
    if not wanted:
        return []
    limits = replace(server.limits, memory_mb=max(1024, server.limits.memory_mb), line_bytes=Limits().line_bytes)
    launch = Launch(argv=_GREP, env=server.env, mounts=server.mounts, limits=limits)
    async with asyncio.timeout(SEARCH_TIMEOUT_S), sandbox.start(launch) as process:
        process.stdin.write("\n".join(sorted(wanted)).encode() + b"\n")
        process.stdin.close()
        lines = [line async for line in process.stdout]
        status = await process.wait()
        # grep: 0 found, 1 not found, 2 some file could not be read, which is what a sandbox is for
        if status not in (0, 1, 2) or (status == 2 and "No such file" in process.stderr_tail()):
            raise EnvInfraError(
                f"leak test of server '{server.name}': grep ended with {status}: {process.stderr_tail()}"
            )
    leaks = []
    for line in lines:
        file, _, text = line.decode("utf-8", "replace").rstrip("\n").partition(":")
        leaks.append(Leak(server=server.name, file=file, text=text))
    return leaks
