"""Which server to run, and how the harness knows its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gymcp.mcp_servers.sandbox.spec import Image, Launch, Limits, Mount

StateSource = Literal["declared", "opaque", "stateless"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One MCP server that speaks over standard input and output."""

    name: str
    argv: tuple[str, ...]
    """As seen from inside the sandbox; ``python3`` is the sandbox's own interpreter. Empty: the image's command."""
    image: Image = None
    """Runs under the docker sandbox only. A name, or the path of a Dockerfile; None: any sandbox."""
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    network: bool = False
    limits: Limits = field(default_factory=Limits)
    state: StateSource = "opaque"
    """declared: the server tells its state (native runtime). opaque: keyed by the log of its calls. stateless: none."""
    wire: Literal["auto", "legacy", "2026-07-28"] = "auto"
    """Which MCP wire to speak; a pinned one saves the negotiation's round trip."""
    start_timeout_s: float = 20.0
    """From the start of the process to its answer with the tool list."""

    def launch(self) -> Launch:
        """The server's process, in a sandbox that is yet to be chosen."""
        return Launch(
            argv=self.argv,
            image=self.image,
            env=self.env,
            mounts=self.mounts,
            network=self.network,
            limits=self.limits,
        )
