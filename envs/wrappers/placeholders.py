"""Placeholders in a world for text that strangers may write: ``{name}`` inside its texts, keys included."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gymcp.types import Json


def fill_placeholders(world: Json, texts: Mapping[str, str]) -> Json:
    """The world with every ``{name}`` of `texts` replaced by its text. Other braces stay.

    A text that has been put in is not searched again.
    """
    if not texts:
        return world
    return _fill(world, re.compile("|".join(re.escape(f"{{{name}}}") for name in texts)), texts)


def _fill(value: Json, placeholders: re.Pattern[str], texts: Mapping[str, str]) -> Json:
    if isinstance(value, str):
        return placeholders.sub(lambda match: texts[match[0][1:-1]], value) if "{" in value else value
    if isinstance(value, Mapping):
        return {_fill(key, placeholders, texts): _fill(inner, placeholders, texts) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_fill(inner, placeholders, texts) for inner in value]
    return value
