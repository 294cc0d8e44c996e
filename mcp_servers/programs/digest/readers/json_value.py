"""The value of a JSON document."""

from __future__ import annotations

import json
from typing import Any

from gymcp.mcp_servers.programs.digest.readers.source import Source, Unreadable


def read(source: Source) -> Any:
    """The value. Raises Unreadable, also for NaN and infinite numbers, which are no JSON."""
    try:
        return json.loads(source.content.decode("utf-8-sig"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is no JSON document: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
