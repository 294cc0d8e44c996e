"""Structural differences between two JSON values: one walk for graders' reasons, for state changes and for the viewer.

All callers agree that 1 is 1.0, that the order of keys does not matter and that of items does. They differ in how they
compare lists of different lengths, NaN, and true with 1: see `DiffRule`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

from gymcp.types import Json

MAX_CHANGES = 200
"""Most changes that `list_changes` spells out."""
MAX_VALUE_CHARS = 2_000
"""Most characters of a value before or after a change."""
MAX_BRIEF_CHARS = 120
"""Most characters of a value in a grader's reason."""
ABSENT: Json = object()
"""Stands for the value on the side of a difference that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRule:
    """Rule of a comparison."""

    lists: Literal["items", "prefix", "whole"]
    """Comparison of lists of different lengths. items: item by item, surplus items are absent on the other side.
    prefix: the common items first, then the lists as a whole. whole: the lists as a whole."""
    nan_equals_nan: bool = True
    sort_keys: bool = False
    """Visit keys in sorted order, instead of those of the left side first."""
    true_equals_one: bool = False
    """Compare as Python does, for which true is 1."""
    missing_keys_first: bool = False
    """Visit keys that only one side has, in sorted order, before those of both sides."""
    ignore_left_keys: bool = False
    """Allow objects on the left side to have keys that those on the right side lack."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One place at which two JSON values differ."""

    path: tuple[str | int, ...]
    """Keys and indices that lead to the place."""
    left: Json
    right: Json


STATE_RULE = DiffRule(lists="whole")
"""Rule for graders of state changes: a list that has grown or shrunk has changed as a whole."""
_REASON_RULE = DiffRule(lists="prefix", sort_keys=True)
_CHANGE_RULE = DiffRule(lists="items", nan_equals_nan=False)


def differences(left: Json, right: Json, rule: DiffRule, path: tuple[str | int, ...] = ()) -> Iterator[Difference]:
    """The places at which the values differ, depth first."""
    pairs: Iterator[tuple[str | int, Json, Json]]
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        pairs = _pair_keys(left, right, rule)
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        pairs = _pair_items(left, right, rule)
    else:
        if not _are_equal(left, right, rule):
            yield Difference(path, left, right)
        return
    for key, inner_left, inner_right in pairs:
        if inner_left is ABSENT or inner_right is ABSENT:
            yield Difference((*path, key), inner_left, inner_right)
        else:
            yield from differences(inner_left, inner_right, rule, (*path, key))
    if isinstance(left, list | tuple) and len(left) != len(right) and rule.lists != "items":
        yield Difference(path, left, right)


def first_difference(found: Json, expected: Json, *, more_keys: bool = False) -> str | None:
    """The first difference as words for a reason: "orders.3.status is 'open', wanted 'paid'"; None if there is none.

    `more_keys`: objects in `found` may have keys that the expected ones lack.
    """
    rule = replace(_REASON_RULE, ignore_left_keys=more_keys)
    difference = next(differences(found, expected, rule), None)
    return None if difference is None else _describe(difference)


def list_changes(before: Json, after: Json) -> dict[str, Json]:
    """Changes from one state to another: their number, and the first `MAX_CHANGES` with the values before and after."""
    changes: list[dict[str, Json]] = []
    count = 0
    for each in differences(before, after, _CHANGE_RULE):
        count += 1
        if count <= MAX_CHANGES:
            kind = "added" if each.left is ABSENT else "removed" if each.right is ABSENT else "changed"
            changes.append(
                {
                    "path": [str(part) for part in each.path],
                    "kind": kind,
                    "before": None if each.left is ABSENT else shorten_value(each.left),
                    "after": None if each.right is ABSENT else shorten_value(each.right),
                }
            )
    return {"count": count, "changes": changes}


def brief(value: Json) -> str:
    """The value as JSON, cut to `MAX_BRIEF_CHARS` characters; the cut is marked."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_BRIEF_CHARS else f"{text[:MAX_BRIEF_CHARS]}... ({len(text)} characters)"


def shorten_value(value: Json) -> str:
    """Text as it is, any other value as indented JSON, cut to `MAX_VALUE_CHARS` characters; the cut is marked."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}… ({len(text):,} characters)"


def _pair_keys(left: Mapping[str, Json], right: Mapping[str, Json], rule: DiffRule) -> Iterator[tuple[str, Json, Json]]:
    keys = [*right] if rule.ignore_left_keys else [*left, *(key for key in right if key not in left)]
    if rule.missing_keys_first:
        alone = left.keys() ^ right.keys()
        keys = sorted(alone) + [key for key in keys if key not in alone]
    for key in sorted(keys) if rule.sort_keys else keys:
        yield key, left.get(key, ABSENT), right.get(key, ABSENT)


def _pair_items(left: Sequence[Json], right: Sequence[Json], rule: DiffRule) -> Iterator[tuple[int, Json, Json]]:
    pairs: Iterable[tuple[Json, Json]]
    if rule.lists == "items":
        pairs = zip_longest(left, right, fillvalue=ABSENT)
    elif rule.lists == "prefix" or len(left) == len(right):
        pairs = zip(left, right, strict=False)
    else:
        return
    for n, (item_left, item_right) in enumerate(pairs):
        yield n, item_left, item_right


def _are_equal(left: Json, right: Json, rule: DiffRule) -> bool:
    if not rule.true_equals_one and (isinstance(left, bool) or isinstance(right, bool)):
        return left is right
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right):
        return rule.nan_equals_nan
    return bool(left == right)


def _describe(difference: Difference) -> str:
    place = ""
    for part in difference.path:
        place = f"{place}.{part}" if place else str(part)
    actual, expected = difference.left, difference.right
    if actual is ABSENT:
        return f"{place} is missing, wanted {brief(expected)}"
    if expected is ABSENT:
        return f"{place} is {brief(actual)}, wanted nothing there"
    place = place or "it"
    if isinstance(actual, list | tuple) and isinstance(expected, list | tuple):
        return f"{place} has {len(actual)} items, wanted {len(expected)}"
    return f"{place} is {brief(actual)}, wanted {brief(expected)}"
