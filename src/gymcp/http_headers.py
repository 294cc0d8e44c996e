"""Checks of what HTTP is given before anything is sent, and of the tokens that requests present."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

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


def is_http_address(url: str) -> bool:
    """True for an http or https URL with a host, and with a port that can be connected to or none."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as an unmatched bracket or an invalid port
        return False


def is_same_token(one: str, other: str) -> bool:
    """True if they are equal; the time that it takes tells nothing about the difference."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))
