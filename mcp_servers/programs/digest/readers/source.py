"""The input of a reader, and the errors with which it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Unreadable(Exception):
    """The content is not what the reader reads; the message gives the reason."""


class TooLarge(Exception):
    """The content, or what would be read from it, is beyond a limit; the message gives the reason."""


class Source(NamedTuple):
    """One file as its reader gets it."""

    path: str
    content: bytes
    """The file without what masks hide."""
    beside: Mapping[str, bytes]
    """Content of the files whose names begin with the file's and end with one of the reader's ``SUFFIXES``."""
    deadline: float
    """Time on the monotonic clock at which the reader gives up."""
