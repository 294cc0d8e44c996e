"""Services: processes that run beside a server in its sandbox, such as a database that the server's tools query."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from gymcp.errors import ConfigError

MAX_SERVICES = 8
MAX_READY_TIMEOUT_S = 600.0
READY_TIMEOUT_S = 10.0
"""Seconds within which a service must be ready, unless its declaration says otherwise."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_READY = re.compile(r"tcp:(?P<port>\d{1,5})|(file|command):\S.*", re.DOTALL)
_FORMS = "have tcp:PORT, file:PATH, command:LINE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A process that is started before the server, in the same sandbox, and ends with it.

    Raises ConfigError for a name, a command, a check or a time that cannot be used.
    """

    name: str
    argv: tuple[str, ...]
    """Command inside the sandbox; ``python3`` is the sandbox's own interpreter. It begins in /workspace."""
    ready: str
    """Check that the service is ready. tcp:PORT: its loopback accepts a connection. file:PATH: the path exists, also a
    socket; a relative one is below /workspace. command:LINE: the command ends with status 0."""
    ready_timeout_s: float = READY_TIMEOUT_S
    """Seconds from its start within which the service must be ready."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment beside the server's."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(f"service {self.name!r}: its name must be made of letters, digits, ., _ and -")
        who = f"service '{self.name}'"
        if not isinstance(self.argv, tuple) or not self.argv or not all(isinstance(word, str) for word in self.argv):
            raise ConfigError(f"{who}: its argv must be a tuple with at least one text")
        match = _READY.fullmatch(self.ready) if isinstance(self.ready, str) else None
        if match is None or (match["port"] is not None and not 1 <= int(match["port"]) <= 65535):
            raise ConfigError(f"{who}: no ready check '{self.ready}'; {_FORMS}")
        if self.ready.startswith("command:"):
            _split(who, self.ready.removeprefix("command:"))
        if not (math.isfinite(self.ready_timeout_s) and 0 < self.ready_timeout_s <= MAX_READY_TIMEOUT_S):
            raise ConfigError(f"{who}: ready_timeout_s is {self.ready_timeout_s}, not within {MAX_READY_TIMEOUT_S:g} s")

    @classmethod
    def parse(cls, line: str, ready: str, timeout_s: float = READY_TIMEOUT_S) -> Service:
        """The service of a command line, named after its program. Raises ConfigError."""
        words = _split(f"service '{line}'", line)
        if not words:
            raise ConfigError("service: an empty command; have e.g. 'redis-server --port 6379'")
        stems = [PurePosixPath(word).stem for word in words if not word.startswith("-")]
        named = stems[1] if len(stems) > 1 and stems[0].startswith("python") else stems[0] if stems else ""
        return cls(name=named, argv=words, ready=ready, ready_timeout_s=timeout_s)


def _split(who: str, line: str) -> tuple[str, ...]:
    """Words of a command line. Raises ConfigError."""
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise ConfigError(f"{who}: '{line}': {error}") from error
