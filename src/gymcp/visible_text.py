"""Make untrusted text safe to read: characters that are invisible, or that act on a terminal, are spelt out.

Every string that reaches a terminal (`gymcp.cli.output`) or a page (`gymcp.evaluators.report`) goes through `visible`;
the viewer's page has the same list in ``static/dom.js``.
"""

from __future__ import annotations

import re

# Control characters act on terminals, bidirectional ones make text read as something else than it is, zero-width, tag
# and filling characters hide text from people that a model reads, and a lone surrogate is no character.
UNSEEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
"""Unseen characters, as the inside of a character class of a regular expression."""
_UNSEEN = re.compile(f"[{UNSEEN}]")


def visible(text: str) -> str:
    r"""The text with every unseen character spelt out (``\u202e``), but ``\n`` and ``\t``: safe to print and encode."""
    return _UNSEEN.sub(_escape, text)


def one_line(text: str) -> str:
    """The text on one line, safe to print: what an error message may quote of a file that was made by others."""
    return visible(" ".join(text.split()))


def shorten(text: str, limit: int) -> str:
    """The text, or its first `limit` characters and a mark."""
    return text if len(text) <= limit else text[:limit] + " ..."


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
