"""Which server to run, and how the harness knows its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gymcp.mcp_servers.sandbox.spec import Forkable, Limits, Mount

StateSource = Literal["declared", "opaque", "stateless"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One MCP server that speaks over standard input and output."""

    name: str
    argv: tuple[str, ...]
    """As seen from inside the sandbox; ``python3`` is the sandbox's own interpreter."""
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    network: bool = False
    limits: Limits = field(default_factory=Limits)
    state: StateSource = "opaque"
    """declared: the server tells its state (native runtime). opaque: keyed by the log of its calls. stateless: none."""
    wire: Literal["auto", "legacy", "2026-07-28"] = "auto"
    """Which MCP wire to speak; a pinned one saves the negotiation's round trip."""
    fork: Forkable | None = None
    """None: a process is started for every episode. Else one is forked, where something keeps a template (`warmed`).

    Only for single-threaded first-party programs that run no code of the model's and signal no other process. A forked
    server has a wall of its own too, with three things weaker: importing the program happens once for all episodes, in
    the outer wall alone and before any seccomp filter; all episodes share one memory layout; and a server may call
    ``setns``, for which it holds no namespace but its own."""
    spares: int = 0
    """How many to start ahead of their episodes, where something keeps them (`warmed`): for slow starters."""
    start_timeout_s: float = 20.0
    """From the start of the process to its answer with the tool list."""
