"""Digests of JSON values, such as the state of a server."""

from __future__ import annotations

import hashlib

from gymcp.mcp_servers.native.runtime import canonical_json
from gymcp.types import Json


def digest(value: Json) -> str:
    """sha256 (hex) of the canonical JSON of `value`. The order of keys does not matter."""
    return digest_and_chars(value)[0]


def digest_and_chars(value: Json) -> tuple[str, int]:
    """(digest, number of characters of the canonical JSON)."""
    canonical = canonical_json(value)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest(), len(canonical)


class DigestMemo:
    """`digest` of values that never change, such as a task's initial state, computed once for each object."""

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._known: dict[int, tuple[Json, str]] = {}
        """(object, digest) by the object's id. The object is kept, so that its id is not reused."""

    def __call__(self, value: Json) -> str:
        if id(value) not in self._known:
            while len(self._known) >= self._size:
                del self._known[next(iter(self._known))]
            self._known[id(value)] = (value, digest(value))
        return self._known[id(value)][1]
