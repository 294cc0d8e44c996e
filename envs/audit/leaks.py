"""Can a server read the answers? Every file that is readable from inside is searched for every task's gold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.sandbox import Launch, Limits, Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json, Task

MIN_NAMED, MIN_NAMELESS = 16, 32
"""Characters. What is shorter occurs by chance: in system files, or in a tool's own answers that gold passes on."""
SEARCH_TIMEOUT_S = 300.0
_GREP = ("grep", "-roaF", "-f", "-", "/", "--exclude-dir=proc", "--exclude-dir=sys", "--exclude-dir=dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    server: str
    file: str
    """As seen from inside; ``initial_state`` for what the harness hands over itself."""
    text: str
    """The piece of gold that was found."""


def needles(task: Task) -> set[str]:
    """The task's gold as it may be written down: calls as Python and as JSON, arguments alone, final texts.

    Of targets only one that is a text, as an answer is, and that the task does not give away itself. The strings inside
    a target state are not searched for: what a tool writes into its world (messages, defaults) is in its source, too.
    """
    alone = [form for _, arguments in _gold_calls(task) for form in _as_json(arguments)]
    texts = [turn.final_text for turn in task.gold]
    if isinstance(task.target, str) and task.target not in json.dumps([task.prompts, task.initial_state]):
        texts.append(task.target)
    return _named(task) | {text for text in alone + texts if len(text) >= MIN_NAMELESS and "\n" not in text}


def _named(task: Task) -> set[str]:
    """The gold calls with the tool's name, which no honest state of a world holds."""
    forms = []
    for name, arguments in _gold_calls(task):
        for comma in (", ", ","):
            forms.append(f"{name}({comma.join(f'{key}={value!r}' for key, value in arguments.items())})")
        forms += _as_json({"name": name, "arguments": arguments})
    return {form for form in forms if len(form) >= MIN_NAMED and "\n" not in form}


def _gold_calls(task: Task) -> Iterator[tuple[str, dict[str, Json]]]:
    for turn in task.gold:
        for call in turn.calls:
            if isinstance(call.arguments, Mapping) and call.arguments:
                yield call.name, dict(call.arguments)


def _as_json(value: Json) -> list[str]:
    return [json.dumps(value, separators=separators) for separators in ((", ", ": "), (",", ":"))]


async def find_leaks(env: LoadedEnv, sandbox: Sandbox) -> list[Leak]:
    """Every piece of gold that a server of the environment could read. Raises EnvInfraError where grep cannot run."""
    found = []
    for task in env.suite.tasks:
        handed_over = json.dumps(task.initial_state)
        found += [
            Leak(server="*", file="initial_state", text=needle) for needle in _named(task) if needle in handed_over
        ]
    wanted = {needle for task in env.suite.tasks for needle in needles(task)}
    same = {repr(replace(server.launch(), argv=())): server for server in reversed(env.servers)}
    for server in reversed(same.values()):  # what is inside depends on the launch alone: of equal ones the first
        found += await _search(server, sandbox, wanted)
    return found


async def _search(server: ServerSpec, sandbox: Sandbox, wanted: set[str]) -> list[Leak]:
    if not wanted or server.url is not None:  # nothing of a server elsewhere is inside
        return []
    limits = replace(server.limits, memory_mb=max(1024, server.limits.memory_mb), line_bytes=Limits().line_bytes)
    launch = replace(server.launch(), argv=_GREP, network=False, limits=limits)
    try:
        async with asyncio.timeout(SEARCH_TIMEOUT_S):
            lines = await _grep(server, sandbox, launch, wanted)
    except TimeoutError as error:
        raise EnvInfraError(
            f"leak test of server '{server.name}': not done within {SEARCH_TIMEOUT_S:g} s: what it can read is too much"
        ) from error
    leaks = []
    for line in lines:
        file, _, text = line.decode("utf-8", "replace").rstrip("\n").partition(":")
        leaks.append(Leak(server=server.name, file=file, text=text))
    return leaks


async def _grep(server: ServerSpec, sandbox: Sandbox, launch: Launch, wanted: set[str]) -> list[bytes]:
    async with sandbox.start(launch) as process:
        process.stdin.write("\n".join(sorted(wanted)).encode() + b"\n")
        process.stdin.close()
        lines = [line async for line in process.stdout]
        status = await process.wait()
        # grep: 0 found, 1 not found, 2 some file could not be read, which is what a sandbox is for
        if status not in (0, 1, 2) or (status == 2 and "No such file" in process.stderr_tail()):
            raise EnvInfraError(
                f"leak test of server '{server.name}': grep ended with {status}: {process.stderr_tail()}"
            )
    return lines
