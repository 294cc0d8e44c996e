"""Words for the failures of a fork server."""

from __future__ import annotations

START_TIMEOUT_S = 20.0
"""Seconds in which a fork server must have imported its program."""
_MAX_TAIL_CHARS = 500
"""Characters of a fork server's standard error that an error quotes."""


def describe_failure(error: Exception) -> str:
    """The error in words, also if it has no message of its own."""
    if isinstance(error, TimeoutError):
        return f"no answer within {START_TIMEOUT_S:g} s"
    return str(error) or type(error).__name__


def compose_message(why: str, last_words: str) -> str:
    """Text of an error: the reason, and the end of the fork server's standard error if it wrote anything."""
    tail = last_words.strip()[-_MAX_TAIL_CHARS:]
    return f"fork server: {why}" + (f"; its last words: {tail}" if tail else "")
