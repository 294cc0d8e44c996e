"""What a server says, without what would steer a terminal: people read results, reasons and logs in one."""

from __future__ import annotations

import re

from gymcp.types import Json

_INSIDE = r"[^\x00-\x08\x0b-\x1f\x7f-\x9f]*"
_STEERING = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])" + _INSIDE + r"(?:\x07|\x1b\\|\x9c)"  # titles, links, device strings
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor, clearing
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_TITLES = frozenset({"title", "description"})


def plain_text(text: str) -> str:
    r"""The text without escape sequences and control characters, of which only ``\n`` and ``\t`` stay."""
    return _STEERING.sub("", text)


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
