"""Reasons of failures by kind: names of fields stay, values of a single task are cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gymcp.visible_text import shorten

CUT = "…"
MAX_REASON_CHARS = 600
"""Characters of a reason that its kind is made of."""
MAX_KIND_CHARS = 140
MAX_EXAMPLE_CHARS = 200

_NAMED = r"(\b(?:argument|attribute|column|field|file|key|parameter|property|table|tool)s? )?"
_QUOTED = re.compile(_NAMED + r"""("(?:[^"\\]|\\.)*"|(?<!\w)'[^']*'(?!\w))""")
_IS_NAME = re.compile(r"""["'][A-Za-z_][A-Za-z_.-]*["']""")
_INDEX = re.compile(r"(?<=\w)\[\d+\]")
_BETWEEN_VALUES = re.compile(r"(, (?:wanted|found|got) |; )")
_CUT_SHORT = re.compile(r"""(?:\{|(?<!\w)[\["']).*\.\.\. ?\(\d+ characters\)|(?:(?:\{|(?<!\w)\[).*|(?<!\w)"[^"]*)…$""")
"""A value that the grader has cut short, in which quotes and brackets need not be closed."""
_INNERMOST = re.compile(r"\{[^{}]*\}|(?<!\w)\[[^\[\]]*\]")
_UNCLOSED = re.compile(r"(?:\{|(?<!\w)\[).*")
_COMPARED = re.compile(
    r"(?P<is>\bis )(?!missing\b|absent\b|not )[^,;…]{1,160}(?=, (?:wanted|expected) )"
    r"|(?P<after>(?:, (?:wanted|found|got|expected)|\bdiffers: expected) )"
    r"(?:(?:(?!, found )[^;…]){1,160}…(?=$|, found )|[^,;…]{1,160}…?)"
)
_WORD = re.compile(r"[\w./~-]*\d[\w./~-]*")
_NUMBER = re.compile(r"-?\d[\d.,:eE+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonKind:
    """Failures whose reasons differ only in values."""

    kind: str
    episodes: int
    task: str
    """Task of the example: the first by name."""
    example: str
    """Reason of one of the episodes with its values, shortened."""


def group_reasons(failed: Sequence[tuple[str, str]]) -> list[ReasonKind]:
    """Kinds of the (task, reason) pairs, most frequent first."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for task, reason in failed:
        kinds.setdefault(reason_kind(reason), []).append((task, " ".join(reason[:MAX_REASON_CHARS].split())))
    groups = []
    for kind, of_kind in sorted(kinds.items(), key=lambda each: (-len(each[1]), each[0])):
        task, example = min(of_kind)
        groups.append(
            ReasonKind(kind=kind, episodes=len(of_kind), task=task, example=shorten(example, MAX_EXAMPLE_CHARS))
        )
    return groups


def reason_kind(reason: str) -> str:
    """The reason with values cut: objects, lists, quoted texts, numbers, and what was wanted or found.

    Names of fields and their paths stay; a part of a path that holds a digit becomes ``*``.
    """
    kind = " ".join(reason[:MAX_REASON_CHARS].split())
    if " characters)" in kind or CUT in kind:
        kind = _cut_in_parts(_CUT_SHORT, kind)
    kind = _QUOTED.sub(_cut_quoted, kind)
    kind = _INDEX.sub(f"({CUT})", kind)  # kept from the brackets of lists
    while (inner := _INNERMOST.sub(CUT, kind)) != kind:
        kind = inner
    kind = _cut_in_parts(_UNCLOSED, kind).replace(f"({CUT})", "[*]")
    kind = _COMPARED.sub(lambda found: f"{found['is'] or found['after']}{CUT}", kind)
    kind = _WORD.sub(_cut_digits, kind)
    return shorten(kind or "no reason given", MAX_KIND_CHARS)


def _cut_in_parts(pattern: re.Pattern[str], kind: str) -> str:
    """The text with the pattern cut from what lies between one value and the next."""
    return "".join(pattern.sub(CUT, part) for part in _BETWEEN_VALUES.split(kind))


def _cut_quoted(found: re.Match[str]) -> str:
    before, text = found[1] or "", found[2]
    return before + (text if before and _IS_NAME.fullmatch(text) else CUT)


def _cut_digits(found: re.Match[str]) -> str:
    word = found[0].rstrip(".")
    end = found[0][len(word) :]
    if _NUMBER.fullmatch(word):
        return CUT + end
    parts = re.split(r"([./])", word)
    whole = CUT if len(parts) == 1 else "*"
    return "".join(whole if any(map(str.isdigit, part)) else part for part in parts) + end
