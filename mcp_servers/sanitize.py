"""What a server says, without what would steer a terminal: people read results, reasons and logs in one."""

from __future__ import annotations

import re

from gymcp.types import Json

_INSIDE = r"[^\x00-\x08\x0b-\x1f\x7f-\x9f]*+"
_STEERING = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])" + _INSIDE + r"(?:\x07|\x1b\\|\x9c)"  # titles, links, device strings
    r"|(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # colours, cursor, clearing
    r"|\x1b[ -/]*+[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ASCII_CONTROLS = bytes(set(range(32)) - {9, 10} | {127})
_OTHER_CONTROLS = [chr(code).encode() for code in range(128, 160)]
MAX_SEQUENCES = 5_000
"""Escape sequences of one text that are taken out as a whole; of more only the control characters are."""
_TITLES = frozenset({"title", "description"})


def plain_text(text: str) -> str:
    r"""The text without escape sequences and control characters, of which only ``\n`` and ``\t`` stay.

    Takes some milliseconds for a million characters, whatever they are.
    """
    if not _has_controls(text):
        return text
    plain, count = _STEERING.subn("", text, MAX_SEQUENCES)
    if count < MAX_SEQUENCES:
        return plain
    raw = plain.encode("utf-8", "surrogatepass").translate(None, _ASCII_CONTROLS)
    if not raw.isascii():
        for control in _OTHER_CONTROLS:
            raw = raw.replace(control, b"")
    return raw.decode("utf-8", "surrogatepass")


def _has_controls(text: str) -> bool:
    if text.isascii():
        return len(text.encode().translate(None, _ASCII_CONTROLS)) != len(text)
    return _CONTROL.search(text) is not None


def plain_schema(schema: Json) -> Json:
    """The schema with its titles and descriptions as plain text; what it demands stays as it is."""
    if isinstance(schema, list):
        return [plain_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: plain_text(part) if key in _TITLES and isinstance(part, str) else plain_schema(part)
        for key, part in schema.items()
    }
