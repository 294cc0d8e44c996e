"""Strict JSON for text that a model wrote: nothing is repaired, and hostile nesting cannot exhaust the stack."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from gymcp.envs.episodes.call_validation import MAX_DEPTH
from gymcp.types import Json

_TO_BRACKET = re.compile(r"""(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+([\[\]{}]|\Z)""", re.DOTALL)
"""Everything up to the next bracket that is in no string, and the bracket; empty at the end. It matches everywhere, so
all matches together take time that grows with the text and not with its square."""
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class Malformed(ValueError):
    """The reason why a text is not a tool call, in words that the model can act on."""


def load(text: str) -> Json:
    """The one JSON value that the text consists of.

    Raises Malformed, also for duplicate keys, NaN, infinities, and values nested more than `MAX_DEPTH` deep.
    """
    _check_depth(_list_brackets(text))
    value, end = _decode(text, _skip_space(text, 0))
    if text[end:].strip():
        raise Malformed(f"text after the JSON value: {excerpt(text[end:].strip())}")
    return value


def load_first(text: str, start: int = 0) -> tuple[Json, int]:
    """The JSON value at `start`, after white space, and the position of its end. Raises Malformed."""
    start = _skip_space(text, start)
    _check_depth(_find_brackets(text, start))
    return _decode(text, start)


def _skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    return start


def _decode(text: str, start: int) -> tuple[Json, int]:
    try:
        return _DECODER.raw_decode(text, start)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from error


def load_object(text: str) -> dict[str, Json]:
    """The one JSON object that the text consists of. Raises Malformed."""
    value = load(text)
    if not isinstance(value, dict):
        raise Malformed(f"a JSON object is needed, not {excerpt(text)}")
    return value


def excerpt(text: str, max_chars: int = 60) -> str:
    """The beginning of a text, quoted, on one line."""
    return repr(text if len(text) <= max_chars else text[:max_chars] + "...")


def _check_depth(brackets: Iterable[str]) -> None:
    """Raises Malformed if the first value is nested too deep; called before the parser recurses."""
    depth = 0
    for bracket in brackets:
        if bracket in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise Malformed(f"nested more than {MAX_DEPTH} deep")
        else:
            depth -= 1
            if depth <= 0:
                return


def _find_brackets(text: str, start: int) -> Iterator[str]:
    """The brackets outside of strings, one by one: no more of the text is read than is asked for."""
    for token in _TO_BRACKET.finditer(text, start):
        if not token[1]:
            return
        yield token[1]


def _list_brackets(text: str) -> str:
    """All brackets outside of strings, faster than one by one; wrong after the first character that is not JSON."""
    without_escapes = text.replace("\\\\", "").replace('\\"', "")
    outside = "".join(without_escapes.split('"')[::2])
    return outside.encode(errors="replace").translate(None, _ALL_BUT_BRACKETS).decode()


def _refuse_constant(name: str) -> Json:
    raise Malformed(f"{name} is not JSON")


def _to_object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((duplicate, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise Malformed(f"the key {excerpt(duplicate)} is given twice")
    return members


_DECODER = json.JSONDecoder(object_pairs_hook=_to_object, parse_constant=_refuse_constant)
