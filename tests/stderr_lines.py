"""Checks of what commands print on standard error, for the tests of all folders."""

from __future__ import annotations

import re

ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
"""A character that acts on a terminal, or that hides text."""


NO_ERRORS = re.compile(r"gymcp: (removed what dead runs had left \(|\d+ episodes? at a time; the limit is )")
"""Lines that are no errors: tests beside this one may have killed runs; a run says how many episodes it plays."""


def errors(stderr: str) -> list[str]:
    """Lines of standard error, without those of `NO_ERRORS`."""
    return [line for line in stderr.splitlines() if NO_ERRORS.match(line) is None]
