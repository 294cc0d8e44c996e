"""Where servers run: records in `spec`, and one backend per module."""

from __future__ import annotations

from collections.abc import Callable

from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.interpreter import Interpreter, interpreter
from gymcp.mcp_servers.sandbox.spec import Forkable, Launch, Limits, Mount, Sandbox, SandboxProcess
from gymcp.mcp_servers.sandbox.unconfined import Unconfined

__all__ = [
    "Forkable",
    "Interpreter",
    "Launch",
    "Limits",
    "Mount",
    "Sandbox",
    "SandboxProcess",
    "get_sandbox",
    "interpreter",
]

_SANDBOXES: dict[str, Callable[[], Sandbox]] = {"bwrap": Bubblewrap, "none": Unconfined}


def get_sandbox(name: str) -> Sandbox:
    """A backend by name. Raises ConfigError where there is none of that name."""
    if name not in _SANDBOXES:
        raise ConfigError(f"no sandbox {name!r}; have {', '.join(_SANDBOXES)}")
    return _SANDBOXES[name]()
