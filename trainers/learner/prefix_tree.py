"""Rows that share tokens at several depths, as a tree of segments, and the calls of a model that compute each once.

A call computes segments behind keys and values that are known. It may compute a whole subtree in one sequence, in which
a mask hides from every token the branches that it is not on: that saves calls, and costs attention to hidden tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from gymcp.trainers.settings.arrays import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCosts:
    """The figures of a model and its device by which calls are compared."""

    width: int
    """Hidden size."""
    overhead: int
    """Tokens that the model computes in the time that a further call of it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens between two branchings, shared by all rows that go through it."""

    parent: int
    """Number of the segment before it; -1: it begins the tree."""
    start: int
    """Tokens of a row before it."""
    end: int
    row: int
    """One of the rows that go through it."""
    last: int
    """Number behind its last descendant: segments are numbered so that a subtree is a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Segments that a model computes in one sequence, all behind the same tokens."""

    first: int
    last: int
    """Number behind the last segment."""
    parent: int
    """Segment whose last token comes before them; -1: none does."""
    is_read: bool
    """True if its keys and values are what later calls go on from."""


def common_length(one: Sequence[int], other: Sequence[int], start: int = 0) -> int:
    """Number of leading tokens that two rows share; the first `start` are known to be."""
    most = min(len(one), len(other))
    return next((at for at in range(start, most) if one[at] != other[at]), most)


def find_segments(texts: Sequence[tuple[int, ...]], start: int) -> tuple[list[Segment], list[int]]:
    """[B] rows of tokens, whose first `start` are the same -> their tree behind these, and each row's last segment.

    Every token that rows share with all tokens before it is in one segment. The first segment may be empty, no other.
    """
    order = sorted(range(len(texts)), key=texts.__getitem__)
    ends = [0] * len(texts)
    found: list[tuple[int, int, int, int]] = []
    waiting = [(0, len(order), start, -1)]
    while waiting:
        low, high, at, parent = waiting.pop()
        end = common_length(texts[order[low]], texts[order[high - 1]], at)  # all others lie between these two
        number = len(found)
        found.append((parent, at, end, order[low]))
        while low < high and len(texts[order[low]]) == end:
            ends[order[low]] = number
            low += 1
        branches = [list(own) for _, own in groupby(range(low, high), key=lambda place: texts[order[place]][end])]
        waiting += [(own[0], own[-1] + 1, end, number) for own in reversed(branches)]
    last = [number + 1 for number in range(len(found))]
    for number in reversed(range(1, len(found))):
        parent = found[number][0]
        last[parent] = max(last[parent], last[number])
    segments = [
        Segment(parent=parent, start=at, end=end, row=row, last=last[number])
        for number, (parent, at, end, row) in enumerate(found)
    ]
    return segments, ends


def estimate_cost(costs: CallCosts, tokens: int, before: int) -> float:
    """Relative time of a call with so many tokens behind `before` others.

    A layer multiplies each token with about 12 width^2 weights, and with the keys and values of all tokens of the call.
    """
    return 6.0 * costs.width * (costs.overhead + tokens) + float(tokens) * (before + tokens)


def plan_calls(segments: Sequence[Segment], costs: CallCosts) -> tuple[list[Call], float]:
    """The calls that compute every segment once, each after those that it goes on from, and their cost.

    Of a segment with branches the cheapest is chosen: it and all branches in one call; it alone, and all of its
    branches in another; or it alone, and each branch as is best for that.
    """
    least = [0.0] * len(segments)
    together = [False] * len(segments)
    """True: all branches of the segment are in one call."""
    whole = [False] * len(segments)
    """True: the segment is in that call, too."""
    sizes = [0] * len(segments)
    for number in reversed(range(len(segments))):
        segment, branches = segments[number], list(_list_branches(segments, number))
        own, below = segment.end - segment.start, sum(sizes[each] for each in branches)
        sizes[number] = own + below
        head = estimate_cost(costs, own, segment.start) if own else 0.0
        choices = [(estimate_cost(costs, sizes[number], segment.start), True, True)]
        if branches:
            choices.append((head + estimate_cost(costs, below, segment.end), True, False))
            choices.append((head + sum(least[each] for each in branches), False, False))
        least[number], together[number], whole[number] = min(choices)
    calls = []
    waiting = [0]
    while waiting:
        number = waiting.pop()
        segment = segments[number]
        if whole[number]:
            calls.append(Call(first=number, last=segment.last, parent=segment.parent, is_read=False))
            continue
        if segment.end > segment.start:
            calls.append(Call(first=number, last=number + 1, parent=segment.parent, is_read=True))
        if together[number]:
            calls.append(Call(first=number + 1, last=segment.last, parent=number, is_read=False))
        else:
            waiting += reversed(list(_list_branches(segments, number)))
    return calls, least[0]


def _list_branches(segments: Sequence[Segment], number: int) -> Iterator[int]:
    """Numbers of the segments that come directly after this one."""
    branch = number + 1
    while branch < segments[number].last:
        yield branch
        branch = segments[branch].last


def mark_visible(segments: Sequence[Segment], call: Call) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None:
    """[tokens of the call, tokens before them and in it]: true for what a token of the call may attend to.

    None if the call is one segment, in which every token sees all before it.
    """
    if call.last == call.first + 1:
        return None
    own = segments[call.first : call.last]
    lengths = [segment.end - segment.start for segment in own]
    number = np.repeat(np.arange(call.first, call.last), lengths)
    last = np.repeat([segment.last for segment in own], lengths)
    tokens = len(number)
    visible = np.ones((tokens, own[0].start + tokens), bool)
    # segments are in the order of a walk, so a token before another is on its path, or in a subtree that has ended
    visible[:, own[0].start :] = np.tri(tokens, dtype=bool) & (number[:, None] < last[None, :])
    return visible


def place_tokens(segments: Sequence[Segment], calls: Sequence[Call], ends: Sequence[int]) -> list[Ints]:
    """For each row the places of its tokens behind the first segment's start in the output of all calls together."""
    offsets, total = [0] * len(segments), 0
    for call in calls:
        for number in range(call.first, call.last):
            offsets[number] = total
            total += segments[number].end - segments[number].start
    places = []
    for end in ends:
        path = [end]
        while segments[path[-1]].parent >= 0:
            path.append(segments[path[-1]].parent)
        parts = [offsets[each] + np.arange(segments[each].end - segments[each].start) for each in reversed(path)]
        places.append(np.concatenate(parts))
    return places
