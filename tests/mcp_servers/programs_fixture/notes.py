"""A server program as one is shipped: it imports only the runtime, here out of a tree of namespace packages."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal

from gymcp.mcp_servers.native.runtime import Server, ToolError

print("printed while importing")
server = Server("notes", version="1.2", instructions="Keep notes.")
notes: dict[str, Any] = {}


@server.setup
def setup(initial_state: Any, seed: int) -> None:
    if not isinstance(initial_state, dict):
        raise ValueError("the initial state maps keys to notes")
    notes.update(initial_state, seed=seed)


@server.state
def state() -> dict[str, Any]:
    return notes


@server.tool(title="Put a note", destructive=True, idempotent=True)
def put(key: Annotated[str, {"minLength": 1}], text: str) -> None:
    """Write a note.

    It replaces what was there.

    Args:
        key: What to find it by,
            later.
        text (str): The note.
    """
    notes[key] = text


@server.tool(read_only=True)
def get(key: str, limit: int = 10) -> str:
    """Read the first characters of a note."""
    if key not in notes:
        raise ToolError(f"no note {key!r}; have {sorted(notes)}")
    return str(notes[key])[:limit]


@server.tool(read_only=True)
def keys() -> list[str]:
    return sorted(notes)


@server.tool(read_only=True)
def sizes(unit: Literal["characters", "bytes"] = "characters") -> dict[str, int]:
    return {key: len(note if unit == "characters" else note.encode()) for key, note in notes.items()}


@server.tool(read_only=True)
def echo(value: Any) -> Any:
    return value


@server.tool(read_only=True)
def size(text: str) -> int:
    return len(text)


@server.tool()
def noisy() -> str:
    print("printed by a tool")
    os.write(1, b"written by a tool\n")
    os.system("echo printed by a child of a tool")
    return f"stdin has {sys.stdin.read()!r}"


@server.tool()
def put_and_fail(key: str) -> int:
    notes[key] = "half done"
    raise KeyError(key)


@server.tool()
def open_file(path: str) -> str:
    with open(path) as file:  # noqa: PTH123
        return file.read()


@server.tool()
def leave() -> str:
    sys.exit(3)


@server.tool()
def lie() -> int:
    return "not a number"  # type: ignore[return-value]


server.run()
