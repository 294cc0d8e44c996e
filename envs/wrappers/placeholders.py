"""Places in a world where text of strangers may stand: ``{name}`` inside of its texts, keys included."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gymcp.types import Json


def filled(world: Json, vectors: Mapping[str, str]) -> Json:
    """The world with every ``{name}`` of `vectors` replaced by its text; other braces stay. Replaced text is final."""
    if not vectors:
        return world
    return _filled(world, re.compile("|".join(re.escape(f"{{{name}}}") for name in vectors)), vectors)


def _filled(value: Json, places: re.Pattern[str], vectors: Mapping[str, str]) -> Json:
    if isinstance(value, str):
        return places.sub(lambda found: vectors[found[0][1:-1]], value) if "{" in value else value
    if isinstance(value, Mapping):
        return {_filled(key, places, vectors): _filled(inner, places, vectors) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(inner, places, vectors) for inner in value]
    return value
