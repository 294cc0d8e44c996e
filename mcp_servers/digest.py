"""Digests of what the harness knows of a world."""

from __future__ import annotations

import hashlib

from gymcp.mcp_servers.runtime import canonical_json
from gymcp.types import Json


def digest(value: Json) -> str:
    """sha256 (hex) of the canonical JSON of `value`; equal values have equal digests whatever their key order."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()
