"""Find HTTP headers that cannot be sent, before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gymcp.errors import ConfigError

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_SENT = re.compile(r"[^\t\x20-\x7e]")


def check_headers(who: str, headers: Mapping[str, str]) -> None:
    """Raise ConfigError, which does not show the value, for a header that is not printable ASCII."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{who}: header {name!a}: its name is no HTTP header's: letters, digits and - only")
        if match := _NOT_SENT.search(value):
            what = "a line break" if match[0] in "\r\n" else f"the character U+{ord(match[0]):04X}"
            raise ConfigError(
                f"{who}: header '{name}': its value has {what} at position {match.start() + 1} of {len(value)}, and"
                " HTTP headers are printable ASCII; was the key or token copied whole, and nothing else?"
            )
