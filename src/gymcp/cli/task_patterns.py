"""The value of ``--tasks``: ids and globs, joined by commas, or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gymcp.errors import ConfigError


def read_patterns(given: str | Sequence[str] | None) -> str | tuple[str, ...]:
    """Ids and globs of tasks: one text, or several in the order given; ``*`` if nothing is given.

    A line of a file is one pattern, even if it has commas; empty lines and lines that begin with ``#`` are left out.
    Raises ConfigError if a file cannot be read, or if no pattern is named.
    """
    if given is None:
        return "*"
    texts = [given] if isinstance(given, str) else given
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    patterns = [each for part in parts for each in (_read_file(part[1:]) if part.startswith("@") else [part])]
    if not patterns:
        raise ConfigError("--tasks: names no task; give ids, globs, or @FILE with one a line")
    unique = tuple(dict.fromkeys(patterns))
    return unique[0] if len(unique) == 1 else unique


def _read_file(name: str) -> list[str]:
    try:
        lines = [line.strip() for line in Path(name).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise ConfigError(f"--tasks @{name}: cannot be read: {reason}") from error
    patterns = [line for line in lines if line and not line.startswith("#")]
    if not patterns:
        raise ConfigError(f"--tasks @{name}: names no task; write one id or glob a line")
    return patterns
