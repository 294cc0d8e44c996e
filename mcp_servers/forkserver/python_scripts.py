"""Third-party Python servers that are imported once and forked: how, from the command that starts one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from gymcp.mcp_servers.sandbox.spec import Forkable, Mount, SandboxProcess

_FOLDER = PurePosixPath("/srv/script")
_MODULE = "gymcp_script"
_TAKES_ARGUMENT = "cWX"
_REHEARSAL_S = 15.0
_MOST_NAMES_BYTES = 50_000
_HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "gymcp", "version": "1"}}
_REHEARSAL: tuple[dict[str, object], ...] = (
    {"id": 1, "method": "initialize", "params": _HELLO},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list", "params": {}},
)


def forkable_script(argv: Sequence[str]) -> Forkable | None:
    """How to fork the server that `argv` starts; None where that is no Python with a file or a module (``-m``)."""
    if not PurePosixPath(argv[0]).name.startswith("python"):
        return None
    words = list(argv)
    position = 1
    while position < len(words) and words[position].startswith("-") and words[position] != "-m":
        letter = words[position][-1]
        if letter in _TAKES_ARGUMENT and len(words[position]) == 2:
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


async def rehearsed_imports(process: SandboxProcess) -> list[str]:
    """What the server has imported when its tools were listed and it has ended, as `programs/script.py` tells.

    Empty where it did not end in time, or not by itself: then its episodes import it.
    """
    found: object = None
    try:
        async with asyncio.timeout(_REHEARSAL_S):
            for message in _REHEARSAL:
                process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            await process.stdin.drain()
            while line := await process.stdout.readline():
                said = _object(line)
                if said.get("id") == _REHEARSAL[-1]["id"]:
                    process.stdin.close()
                found = said.get("imports", found)
    except (TimeoutError, OSError, ValueError):
        return []
    names = found if isinstance(found, list) else []
    return list(_few([name for name in names if isinstance(name, str)]))


def _object(line: bytes) -> dict[str, object]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # it may print what it likes: this is a rehearsal
        return {}
    return found if isinstance(found, dict) else {}


def _few(names: list[str]) -> Iterator[str]:
    """As many as one message can carry."""
    left = _MOST_NAMES_BYTES
    for name in names:
        left -= len(json.dumps(name)) + 2
        if left < 0:
            return
        yield name
