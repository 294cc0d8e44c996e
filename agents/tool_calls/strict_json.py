"""JSON as a model wrote it, taken at its word: nothing is repaired, and nothing in it can hurt who reads it."""

from __future__ import annotations

import json
import re
from collections import Counter

from gymcp.envs.episodes.call_validation import MAX_DEPTH
from gymcp.types import Json

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)


class Malformed(ValueError):
    """Why a text is no tool call, in words that the model can act on."""


def load(text: str) -> Json:
    """The one value that the text is. Raises Malformed, also for duplicate keys, NaN, and what is nested too deep."""
    value, end = load_first(text)
    if text[end:].strip():
        raise Malformed(f"text after the JSON value: {excerpt(text[end:].strip())}")
    return value


def load_first(text: str, start: int = 0) -> tuple[Json, int]:
    """The JSON value at `start`, behind white space, and where it ends. Raises Malformed."""
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    if text[start : start + 1] in ("[", "{"):
        _check_depth(text, start)
    try:
        return _DECODER.raw_decode(text, start)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from error


def load_object(text: str) -> dict[str, Json]:
    """The JSON object that the text is. Raises Malformed."""
    value = load(text)
    if not isinstance(value, dict):
        raise Malformed(f"a JSON object is needed, not {excerpt(text)}")
    return value


def excerpt(text: str, most: int = 60) -> str:
    """The beginning of a text, quoted, on one line."""
    return repr(text if len(text) <= most else text[:most] + "...")


def _check_depth(text: str, start: int) -> None:
    """Raises Malformed where the first value is too deep; looked at before the parser recurses."""
    depth = 0
    for found in _BRACKETS.finditer(text, start):
        mark = text[found.start()]
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise Malformed(f"nested more than {MAX_DEPTH} deep")
        elif mark in "]}":
            depth -= 1
            if depth <= 0:
                return


def _no_constant(name: str) -> Json:
    raise Malformed(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise Malformed(f"the key {excerpt(twice)} is given twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
