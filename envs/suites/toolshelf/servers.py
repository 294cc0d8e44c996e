"""The servers of the shelf: small native services, forked from one template, and third-party servers from the lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.packages.locked_server import is_installed, locked_server
from gymcp.mcp_servers.programs.shelf.server import services
from gymcp.mcp_servers.spec import FileState, Mask, ServerSpec, StateSource
from gymcp.mcp_servers.workspaces.seeds import FIXED_ENVIRONMENT
from gymcp.types import Json

PROGRAM = "gymcp.mcp_servers.programs.shelf.server"
_MODULES = tuple(
    f"gymcp.mcp_servers.programs.shelf.{part}"
    for part in ("descriptions", "devops", "finance", "home", "office", "people", "public")
)
_REPOSITORY = {"files": {"README.md": "# Notes\n"}, "commands": [["git", "init", "-q", "-b", "main"]]}
THIRD_PARTY: Mapping[str, tuple[StateSource, Json]] = {
    "filesystem": (FileState(), None),
    "git": (FileState(kind="git"), _REPOSITORY),
    "memory": (FileState(), None),
    "time": ("stateless", None),
    "sequential_thinking": ("opaque", None),
    # both write the time into their files
    "excel": (FileState(masks=(Mask(files="*.xlsx", kind="zip_timestamps"),)), None),
    "word": (FileState(masks=(Mask(files="*.docx", kind="zip_timestamps"),)), None),
}
"""State source of each third-party server, and its initial state for tasks that give it none."""
LOCK = Path(__file__).parents[2] / "catalog" / "servers.lock"


def server_names() -> tuple[str, ...]:
    """Names of all servers, third-party servers first."""
    return (*THIRD_PARTY, *services())


def shelf_servers(names: Sequence[str] | None = None) -> tuple[ServerSpec, ...]:
    """The servers of these names, or all for None. Raises ConfigError for an unknown name."""
    chosen = server_names() if names is None else tuple(names)
    if unknown := [name for name in chosen if name not in server_names()]:
        raise ConfigError(f"toolshelf: no server '{unknown[0]}'; have {', '.join(server_names())}")
    program = native_server("shelf", PROGRAM, modules=_MODULES, start="fork")
    return tuple(
        _third_party(name) if name in THIRD_PARTY else replace(program, name=name, initial_state={"service": name})
        for name in chosen
    )


def are_installed() -> bool:
    """True if all third-party servers are installed."""
    return all(is_installed(name, lock=LOCK) for name in THIRD_PARTY)


def _third_party(name: str) -> ServerSpec:
    state, start = THIRD_PARTY[name]
    env = FIXED_ENVIRONMENT if name == "git" else {}
    return replace(locked_server(name, lock=LOCK, state=state, env=env), initial_state=start)
