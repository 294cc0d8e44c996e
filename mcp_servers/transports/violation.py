"""Record of a server's violation of the protocol, shared by a transport, which writes it, and a session."""

from __future__ import annotations

import json
from collections.abc import Callable

from gymcp.errors import EnvInfraError, ProtocolError, ServerDied, ServerTimeout
from gymcp.mcp_servers.loop_share import LoopShare
from gymcp.mcp_servers.programs import http_bridge

MAX_REASON_CHARS = 1000
"""Characters of a bridge's reason for the loss of its server that are kept."""
_FAILURES: dict[str, type[EnvInfraError]] = {
    http_bridge.BROKE_PROTOCOL: ProtocolError,
    http_bridge.NEVER_OPENED: ServerTimeout,
    http_bridge.LOST: ServerDied,
}


class ProtocolViolation:
    """Record of the first violation of the protocol by a server, and of the loop time that the server has used.

    It is read when the connection has closed.
    """

    def __init__(self, redact: Callable[[str], str] | None = None, share: LoopShare | None = None) -> None:
        """`redact`: removes secret values from a text. `share`: that of an earlier session; None: a new one."""
        self._redact = redact
        self.text: str | None = None
        self.error: type[EnvInfraError] = ProtocolError
        """Class of the error that pending requests raise."""
        self.share = share or LoopShare()
        """Share of the event loop's time, from which the handling of the server's messages is paid."""

    def read_last_line(self, line: bytes) -> None:
        """Record the reason in a bridge's last line: how the server behind it was lost. Raises ValueError."""
        row = json.loads(line)
        if not isinstance(row, dict) or row.get("failure") not in _FAILURES:
            raise ValueError("a bridge's last line is not one")
        self.error = _FAILURES[row["failure"]]
        self.text = self.excerpt(str(row.get("why")), MAX_REASON_CHARS)

    def excerpt(self, text: str, characters: int) -> str:
        """Beginning of a text of the server, without secret values or parts of them."""
        return (text if self._redact is None else self._redact(text))[:characters]
