"""Sandboxes that servers run in: the records are in `spec`, and each backend has a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.docker.backend import Docker
from gymcp.mcp_servers.sandbox.interpreter import Interpreter, interpreter
from gymcp.mcp_servers.sandbox.spec import Forkable, Image, Launch, Limits, Mount, Sandbox, SandboxProcess
from gymcp.mcp_servers.sandbox.unconfined import Unconfined

__all__ = [
    "Forkable",
    "Image",
    "Interpreter",
    "Launch",
    "Limits",
    "Mount",
    "Sandbox",
    "SandboxProcess",
    "check_images",
    "confined_sandboxes",
    "get_sandbox",
    "interpreter",
]

_SANDBOXES: dict[str, Callable[[], Sandbox]] = {"bwrap": Bubblewrap, "docker": Docker, "none": Unconfined}


def get_sandbox(name: str) -> Sandbox:
    """A backend by name. Raises ConfigError if there is none of that name."""
    if name not in _SANDBOXES:
        raise ConfigError(f"no sandbox {name!r}; have {', '.join(_SANDBOXES)}")
    return _SANDBOXES[name]()


def confined_sandboxes() -> list[Sandbox]:
    """The backends that confine a server, the default first."""
    return [sandbox for sandbox in (make() for make in _SANDBOXES.values()) if sandbox.confined]


def check_images(sandbox: Sandbox, images: Iterable[Image]) -> None:
    """Check the images before any episode needs them.

    Raises SandboxUnavailable for an image that is missing, ConfigError for a sandbox that cannot use images.
    """
    if isinstance(sandbox, Docker):
        sandbox.require(images)
    elif named := [str(image) for image in images if image is not None]:
        raise ConfigError(f"{sandbox.name}: servers from images ({', '.join(named)}) need --sandbox docker")
