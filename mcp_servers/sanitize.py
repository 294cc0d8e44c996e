"""Strip escape sequences from the output of servers, because results, reasons and logs are printed to terminals."""

from __future__ import annotations

import re

from gymcp.types import Json

_PRINTABLE = r"[^\x00-\x08\x0b-\x1f\x7f-\x9f]*+"
_ESCAPES = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])" + _PRINTABLE + r"(?:\x07|\x1b\\|\x9c)"  # titles, links, device strings
    r"|(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # colours, cursor, clearing
    r"|\x1b[ -/]*+[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ASCII_CONTROLS = bytes(set(range(32)) - {9, 10} | {127})
_OTHER_CONTROLS = [chr(code).encode() for code in range(128, 160)]
MAX_SEQUENCES = 5_000
"""Escape sequences of one text that are removed completely. Beyond, only the control characters are removed."""
_TITLES = frozenset({"title", "description"})


def plain_text(text: str) -> str:
    r"""The text without escape sequences and control characters, except ``\n`` and ``\t``.

    Takes some milliseconds for any million characters.
    """
    if not has_controls(text):
        return text
    parts: list[str] = []
    at = 0
    for _ in range(MAX_SEQUENCES):
        first = _CONTROL.search(text, at)  # a search for one of these characters is much faster than for a sequence
        if first is None:
            return "".join((*parts, text[at:]))
        parts.append(text[at : first.start()])
        sequence = _ESCAPES.match(text, first.start())
        assert sequence is not None  # the last alternative is the character alone
        at = sequence.end()
    raw = "".join((*parts, text[at:])).encode("utf-8", "surrogatepass").translate(None, _ASCII_CONTROLS)
    if not raw.isascii():
        for control in _OTHER_CONTROLS:
            raw = raw.replace(control, b"")
    return raw.decode("utf-8", "surrogatepass")


def has_controls(text: str) -> bool:
    r"""True if a control character is in the text, except ``\n`` and ``\t``."""
    if text.isascii():
        return len(text.encode().translate(None, _ASCII_CONTROLS)) != len(text)
    return _CONTROL.search(text) is not None


def plain_schema(schema: Json) -> Json:
    """The schema with plain titles and descriptions. Its constraints stay as they are."""
    if isinstance(schema, list):
        return [plain_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: plain_text(part) if key in _TITLES and isinstance(part, str) else plain_schema(part)
        for key, part in schema.items()
    }
