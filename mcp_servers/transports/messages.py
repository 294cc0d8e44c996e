"""JSON-RPC messages from lines of text, within bounds: parsing them takes time on the event loop of all episodes."""

from __future__ import annotations

import json

import mcp_types
from pydantic_core import from_json

from gymcp.types import Json

MAX_VALUES = 100_000
"""Values in one message, counted by the marks of JSON outside strings. Parsing that many takes 15 ms."""
MANY_VALUES = f"has more than {MAX_VALUES} values"
TOO_LARGE = -32098
"""JSON-RPC error code for an answer that was too large to be read."""
_MARKS = (b",", b":", b"{", b"[")


class TooMuch(ValueError):
    """A server sends more than it may. The message says how much."""


def parse_message(line: bytes) -> mcp_types.JSONRPCMessage:
    """The message in a line. Raises ValueError if it is none, TooMuch if it has more values than a message may have."""
    if has_many_values(line):
        raise TooMuch(MANY_VALUES)
    return to_message(decode_line(line))


def decode_line(line: bytes) -> Json:
    """JSON value of the line, with a question mark for every lone surrogate. Raises ValueError if it is not JSON."""
    try:
        return from_json(line)
    except ValueError as error:
        if "hex escape" not in str(error):
            raise
        try:  # a lone surrogate, which JSON can escape and UTF-8 cannot encode
            line = json.dumps(json.loads(line), ensure_ascii=False).encode(errors="replace")
        except RecursionError:
            raise error from None
        return from_json(line)


def to_message(value: Json) -> mcp_types.JSONRPCMessage:
    """The JSON value as a message. Raises ValueError if it is none."""
    return mcp_types.jsonrpc_message_adapter.validate_python(value, by_name=False)


def has_many_values(line: bytes, most: int = MAX_VALUES) -> bool:
    """True if the line holds more than `most` values, which are counted without parsing it."""
    if len(line) <= most or sum(map(line.count, _MARKS)) <= most:
        return False
    bare = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 2 * most + 2:  # a mark stands between any two strings
        return True
    outside = b"".join(bare.split(b'"')[::2])
    return sum(map(outside.count, _MARKS)) > most
