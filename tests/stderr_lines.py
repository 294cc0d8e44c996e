"""Checks of what commands print on standard error, for the tests of all folders."""

from __future__ import annotations

import re

ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
"""A character that acts on a terminal, or that hides text."""


def errors(stderr: str) -> list[str]:
    """Lines of standard error, without the one on what dead processes have left.

    Tests beside this one may have killed some.
    """
    return [line for line in stderr.splitlines() if not line.startswith("gymcp: removed what dead runs had left (")]
