"""Check the syntax of a regular expression by reading it once. Nothing is compiled or matched.

A server's pattern is untrusted: it could be written to take very long to compile or to match. Patterns in schemas are
JavaScript's (ECMA-262), some of which Python's library refuses. So this check accepts patterns that either of them
accepts, and refuses those that both refuse: groups and classes that do not end, a repetition of nothing, bounds and
ranges in the wrong order, a backslash at the end.
"""

from __future__ import annotations

import re
import string

_BOUNDS = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")
_RANGE = re.compile(r"([A-Za-z0-9])-([A-Za-z0-9])")
_KINDS = frozenset(":=!<>|'#&^+-(" + string.ascii_letters + string.digits)
"""Characters that may follow ``(?`` in some dialect."""


def check_regex(pattern: object) -> bool:
    """True for a pattern, and for a value that is not a text. Raises ValueError, in words, for any other text."""
    if isinstance(pattern, str):
        try:
            _read(pattern, bracket_first=False)
        except ValueError:
            if "[]" not in pattern and "[^]" not in pattern:
                raise
            _read(pattern, bracket_first=True)
    return True


def _read(pattern: str, *, bracket_first: bool) -> None:
    """Raise ValueError for a malformed pattern.

    `bracket_first`: a class may begin with ``]``, as in Python; in JavaScript ``[]`` is a complete class.
    """
    groups: list[int] = []
    at, can_repeat = 0, False
    while at < len(pattern):
        match pattern[at]:
            case "\\":
                at, can_repeat = _escape(pattern, at), True
            case "[":
                at, can_repeat = _class(pattern, at, bracket_first), True
            case "(":
                groups.append(at)
                at, can_repeat = _kind(pattern, at), False
            case ")":
                if not groups:
                    raise ValueError(f"at {at} a group ends that did not begin")
                groups.pop()
                at, can_repeat = at + 1, True
            case char if char in "*+?" or _BOUNDS.match(pattern, at):
                if not can_repeat:
                    raise ValueError(f"at {at} nothing is repeated")
                at, can_repeat = _repetition(pattern, at), False
            case char:
                at, can_repeat = at + 1, char != "|"
    if groups:
        raise ValueError(f"the group at {groups[-1]} does not end")


def _escape(pattern: str, at: int) -> int:
    if at + 1 == len(pattern):
        raise ValueError("a backslash at the end")
    return at + 2


def _class(pattern: str, start: int, bracket_first: bool) -> int:
    at = start + 1 + pattern.startswith("^", start + 1)
    at += bracket_first and pattern.startswith("]", at)
    while at < len(pattern) and pattern[at] != "]":
        if (ends := _RANGE.match(pattern, at)) is not None:
            if ends[1] > ends[2]:
                raise ValueError(f"at {at} the range {ends[0]} is the wrong way round")
            at = ends.end()
        else:
            at = _escape(pattern, at) if pattern[at] == "\\" else at + 1
    if at >= len(pattern):
        raise ValueError(f"the class at {start} does not end")
    return at + 1


def _kind(pattern: str, at: int) -> int:
    if not pattern.startswith("(?", at):
        return at + 1
    if (kind := pattern[at + 2 : at + 3]) not in _KINDS:
        raise ValueError(f"at {at} an unknown kind of group")
    return at + 2 + (kind != "(")


def _repetition(pattern: str, at: int) -> int:
    bounds = _BOUNDS.match(pattern, at)
    if bounds is not None and bounds[2] and int(bounds[1]) > int(bounds[2]):
        raise ValueError(f"at {at} the bounds {bounds[0]} are the wrong way round")
    end = bounds.end() if bounds is not None else at + 1
    return end + pattern.startswith(("?", "+"), end)  # as few, or without going back
