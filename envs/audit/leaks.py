"""Search for leaks: every file that a server can read is searched for the gold of every task."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json, Task

MIN_NAMED_CHARS, MIN_UNNAMED_CHARS = 16, 32
"""Fewest characters of a gold text with and without a tool's name. Shorter texts occur by chance: in system files, or
in a tool's own results that gold passes on."""
SEARCH_TIMEOUT_S = 300.0
"""Seconds for the search in one server's files."""
_LIST_FILES = ("grep", "-rlaFZ", "-f", "-", "/", "--exclude-dir=proc", "--exclude-dir=sys", "--exclude-dir=dev")
_PRINT_TEXTS = ("grep", "-oaHFZ", "-f", "-", "--")
"""With ``-Z``, a zero byte ends the name of a file, which may hold a line break or a colon."""
_NAME = re.compile(rb"([^\0]+)\0")
_NAME_AND_TEXT = re.compile(rb"([^\0]+)\0([^\n]*)\n")
_RARE_BYTES = "({"
"""Calls hold one of these. If all texts begin with few different bytes that are rare in binary files, grep skips the
rest of a file up to five times faster."""
_MIN_END_CHARS = 6
_MAX_ARGUMENTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    server: str
    file: str
    """Path as the server sees it; ``initial_state`` for the state that the harness hands to the server."""
    text: str
    """The gold text that was found."""


def gold_texts(task: Task) -> set[str]:
    """The task's gold in the forms in which it may be written: calls as Python and as JSON, arguments, final texts.

    The target is included only if it is a text, as an answer is, that the task itself does not contain. The strings
    inside a target state are not searched for, because the messages and defaults that a tool writes into its world also
    stand in its source.
    """
    arguments_alone = [form for _, arguments in _gold_calls(task) for form in _as_json(arguments)]
    texts = [turn.final_text for turn in task.gold]
    if isinstance(task.target, str) and task.target not in json.dumps([task.prompts, task.initial_state]):
        texts.append(task.target)
    return _texts_with_tool_name(task) | {
        text for text in arguments_alone + texts if len(text) >= MIN_UNNAMED_CHARS and "\n" not in text
    }


def _texts_with_tool_name(task: Task) -> set[str]:
    """The gold calls with the tool's name, which no ordinary state of a world contains."""
    forms = []
    for name, arguments in _gold_calls(task):
        for comma in (", ", ","):
            forms.append(f"{name}({comma.join(f'{key}={value!r}' for key, value in arguments.items())})")
        forms += _as_json({"name": name, "arguments": arguments})
    return {form for form in forms if len(form) >= MIN_NAMED_CHARS and "\n" not in form}


def _gold_calls(task: Task) -> Iterator[tuple[str, dict[str, Json]]]:
    for turn in task.gold:
        for call in turn.calls:
            if isinstance(call.arguments, Mapping) and call.arguments:
                yield call.name, dict(call.arguments)


def _as_json(value: Json) -> list[str]:
    return [json.dumps(value, separators=separators) for separators in ((", ", ": "), (",", ":"))]


async def find_leaks(env: LoadedEnv, sandbox: Sandbox) -> list[Leak]:
    """All gold texts that a server of the environment could read. Raises EnvInfraError if grep cannot run."""
    leaks = []
    for task in env.suite.tasks:
        initial_state = json.dumps(task.initial_state)
        leaks += [
            Leak(server="*", file="initial_state", text=text)
            for text in _texts_with_tool_name(task)
            if text in initial_state
        ]
    texts = {text for task in env.suite.tasks for text in gold_texts(task)}
    by_launch = {repr(replace(server.launch(), argv=())): server for server in reversed(env.servers)}
    for server in reversed(by_launch.values()):  # readable files depend on the launch alone: the first of equal ones
        leaks += await _search(server, sandbox, texts)
    return leaks


def rare_end(text: str) -> str:
    """The text from its first rare byte on; all of it if the end were so short that it occurs everywhere."""
    start = min((at for byte in _RARE_BYTES if (at := text.find(byte)) >= 0), default=0)
    return text[start:] if len(text) - start >= _MIN_END_CHARS else text


async def _search(server: ServerSpec, sandbox: Sandbox, texts: set[str]) -> list[Leak]:
    """Search all files for the ends of the texts, which is fast, and the files that hold one for the texts."""
    if not texts or server.url is not None:  # a remote server has no files here
        return []
    matches: list[tuple[str, str]] = []
    try:
        async with asyncio.timeout(SEARCH_TIMEOUT_S):
            listed = await _grep(server, sandbox, _LIST_FILES, {rare_end(text) for text in texts})
            files = [os.fsdecode(name) for name in _NAME.findall(listed)]
            for at in range(0, len(files), _MAX_ARGUMENTS):
                printed = await _grep(server, sandbox, (*_PRINT_TEXTS, *files[at : at + _MAX_ARGUMENTS]), texts)
                matches += [(_show(name), _show(text)) for name, text in _NAME_AND_TEXT.findall(printed)]
    except TimeoutError as error:
        raise EnvInfraError(
            f"leak test of server '{server.name}': not done within {SEARCH_TIMEOUT_S:g} s: what it can read is too much"
        ) from error
    return [Leak(server=server.name, file=file, text=text) for file, text in matches]


def _show(part: bytes) -> str:
    return part.decode("utf-8", "replace")


async def _grep(server: ServerSpec, sandbox: Sandbox, argv: tuple[str, ...], texts: set[str]) -> bytes:
    """The output of grep inside."""
    limits = replace(server.limits, memory_mb=max(1024, server.limits.memory_mb))
    launch = replace(server.launch(), argv=argv, network=False, limits=limits)
    async with sandbox.start(launch) as process:
        process.stdin.write("\n".join(sorted(texts)).encode() + b"\n")
        process.stdin.close()
        output = await process.stdout.read()
        status = await process.wait()
        # grep: 0 found, 1 not found, 2 some file could not be read, which is the purpose of a sandbox
        if status not in (0, 1, 2) or (status == 2 and "No such file" in process.stderr_tail()):
            raise EnvInfraError(
                f"leak test of server '{server.name}': grep ended with {status}: {process.stderr_tail()}"
            )
    return output
