"""Words for the failures of a fork server."""

from __future__ import annotations

from gymcp.mcp_servers.output_tail import describe_output

START_TIMEOUT_S = 20.0
"""Seconds in which a fork server must have imported its program."""


def describe_failure(error: Exception) -> str:
    """The error in words, also if it has no message of its own."""
    if isinstance(error, TimeoutError):
        return f"no answer within {START_TIMEOUT_S:g} s"
    return str(error) or type(error).__name__


def compose_message(why: str, shown: str) -> str:
    """Text of an error: the reason, and the end of the fork server's standard error, if there is any, as shown."""
    return f"fork server: {why}{describe_output(shown, 'fork-server')}"
