"""What a step changed in the recorded state, path by path."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from gymcp.types import Json

MAX_CHANGES = 200
MAX_VALUE = 2_000
"""Characters of a value before and after."""

_ABSENT = object()


def changes(before: Json, after: Json) -> dict[str, Json]:
    """How two states differ: how many places, and the first `MAX_CHANGES` of them with what was there and what is.

    Equal as JSON: true is not 1, the order of keys does not matter, that of items does.
    """
    found: list[dict[str, Json]] = []
    count = 0
    for path, old, new in _differences(before, after, ()):
        count += 1
        if count <= MAX_CHANGES:
            kind = "added" if old is _ABSENT else "removed" if new is _ABSENT else "changed"
            found.append(
                {
                    "path": [str(part) for part in path],
                    "kind": kind,
                    "before": None if old is _ABSENT else shown(old),
                    "after": None if new is _ABSENT else shown(new),
                }
            )
    return {"count": count, "changes": found}


def shown(value: Json) -> str:
    """Text as it is, else JSON; cut where it is long, and the cut marked."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}… ({len(text):,} characters)"


def _differences(
    before: Json, after: Json, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], object, object]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _at(before.get(key, _ABSENT), after.get(key, _ABSENT), (*path, key))
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for n in range(max(len(before), len(after))):
            yield from _at(
                before[n] if n < len(before) else _ABSENT, after[n] if n < len(after) else _ABSENT, (*path, n)
            )
    elif before != after or isinstance(before, bool) is not isinstance(after, bool):
        yield path, before, after


def _at(
    before: object, after: object, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], object, object]]:
    if before is _ABSENT or after is _ABSENT:
        yield path, before, after
    else:
        yield from _differences(before, after, path)
