"""What commands say, for the tests of all folders."""

from __future__ import annotations


def errors(stderr: str) -> list[str]:
    """Its lines, but for the one on what dead processes have left: tests beside this one may have killed some."""
    return [line for line in stderr.splitlines() if not line.startswith("gymcp: removed what dead runs had left (")]
