"""Third-party Python servers that are imported once and forked: derived from the command that starts one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from gymcp.mcp_servers.sandbox.spec import Forkable, Mount, SandboxProcess

_FOLDER = PurePosixPath("/srv/script")
_MODULE = "gymcp_script"
_OPTIONS_WITH_ARGUMENT = "cWX"
_REHEARSAL_TIMEOUT_S = 15.0
_MAX_NAMES_BYTES = 50_000
"""Bytes of the names of modules that one message to the spawner can carry."""
_HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "gymcp", "version": "1"}}
_REHEARSAL: tuple[dict[str, object], ...] = (
    {"id": 1, "method": "initialize", "params": _HELLO},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list", "params": {}},
)


def forkable_script(argv: Sequence[str]) -> Forkable | None:
    """Program to fork instead of starting `argv`; None if that is not Python with a file or a module (``-m``)."""
    if not PurePosixPath(argv[0]).name.startswith("python"):
        return None
    words = list(argv)
    position = 1
    while position < len(words) and words[position].startswith("-") and words[position] != "-m":
        letter = words[position][-1]
        if letter in _OPTIONS_WITH_ARGUMENT and len(words[position]) == 2:
            position += 1
        if words[position][:2] == "-c":
            return None
        position += 1
    script = tuple(words[position:])
    if not script or script == ("-m",):
        return None
    options = "".join(word[1:] for word in words[1:position])
    own = "/workspace" if script[0] == "-m" else str(PurePosixPath(script[0]).parent)
    return Forkable(
        path=(str(_FOLDER), *([] if set(options) & set("IP") else [own])),
        module=_MODULE,
        python=tuple(words[:position]),
        script=script,
        mounts=(Mount(source=Path(__file__).parents[1] / "programs" / "script.py", target=_FOLDER / f"{_MODULE}.py"),),
    )


async def rehearse_imports(process: SandboxProcess) -> list[str]:
    """Modules that the server has imported by the end of a first run, as `programs/script.py` reports them.

    The run lists the tools and ends. Empty if it does not end in time or by itself; then every episode imports them.
    """
    reported: object = None
    try:
        async with asyncio.timeout(_REHEARSAL_TIMEOUT_S):
            for message in _REHEARSAL:
                process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            await process.stdin.drain()
            while line := await process.stdout.readline():
                message = _parse_object(line)
                if message.get("id") == _REHEARSAL[-1]["id"]:
                    process.stdin.close()
                reported = message.get("imports", reported)
    except (TimeoutError, OSError, ValueError):
        return []
    names = reported if isinstance(reported, list) else []
    return list(_limit_names([name for name in names if isinstance(name, str)]))


def _parse_object(line: bytes) -> dict[str, object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # in a rehearsal a server may print anything
        return {}
    return value if isinstance(value, dict) else {}


def _limit_names(names: list[str]) -> Iterator[str]:
    """The first names, as many as one message can carry."""
    left = _MAX_NAMES_BYTES
    for name in names:
        left -= len(json.dumps(name)) + 2
        if left < 0:
            return
        yield name
