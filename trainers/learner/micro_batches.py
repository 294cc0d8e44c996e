"""Rows of an update in micro-batches: rows of one task together that share tokens, all others by their length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gymcp.trainers.learner.prefix_tree import CallCosts, common_length, estimate_cost, find_segments, plan_calls
from gymcp.trainers.learner.token_rows import Row

MIN_SAVED_TOKENS = 400
"""Fewest tokens that must be saved for a text to be encoded by itself. Its calls cost as much as that in a small model,
which cannot be used by several threads at a time, and little beside the rest of a large one's update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Rows that go through the model in one forward pass."""

    rows: tuple[int, ...]
    """Indices of the rows in the batch."""
    prefix: int
    """Number of leading tokens that all rows share and that are encoded once; 0: none are shared."""
    nested: bool = False
    """True: what some of the rows share behind the prefix is computed once, too, as a tree."""


def plan_micro_batches(
    rows: Sequence[Row], groups: Sequence[int], *, tokens: int, share: bool, costs: CallCosts | None = None
) -> list[MicroBatch]:
    """[B] rows and their task numbers -> micro-batches of at most `tokens` tokens, padding included.

    With `share`, rows of one task share their common prefix if that saves work; all other rows are grouped by length.
    With `costs`, they share what some of them have in common at every depth if that saves work.
    Equal rows are in one micro-batch and count once. A row longer than `tokens` is a micro-batch of its own.
    """
    batches: list[MicroBatch] = []
    unshared: list[int] = []
    by_group: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        by_group.setdefault(group, []).append(place)
    for members in by_group.values():
        distinct, _ = find_distinct([rows[place] for place in members])
        prefix = common_prefix_length(distinct) if share and len(distinct) > 1 else 0
        longest = max(len(row.token_ids) for row in distinct)
        # little to save, and the rows could not be packed with others
        if prefix * (len(distinct) - 1) < max(longest, MIN_SAVED_TOKENS):
            prefix = 0
        if share and costs is not None and _is_tree_cheaper(distinct, prefix, costs):
            batches += _pack_tree(rows, members, prefix, tokens)
        elif prefix:
            batches += _pack(rows, members, prefix, tokens)
        else:
            unshared += members
    return batches + list(_pack(rows, unshared, 0, tokens))


def _is_tree_cheaper(rows: Sequence[Row], prefix: int, costs: CallCosts) -> bool:
    """True if it saves work to compute what these rows share behind the prefix once, the further calls included."""
    segments, _ = find_segments([row.token_ids for row in rows], prefix)
    _, of_tree = plan_calls(segments, costs)
    tails = [len(row.token_ids) - prefix for row in rows]
    # in one call without padding, which is less than they take
    of_rows = sum(estimate_cost(costs, tail, prefix) for tail in tails)
    return of_tree < of_rows - (len(rows) - 1) * estimate_cost(costs, 0, 0)


def _pack_tree(rows: Sequence[Row], members: Sequence[int], prefix: int, tokens: int) -> Iterator[MicroBatch]:
    """Micro-batches of the member rows as trees, rows that share most beside each other."""
    chosen: list[int] = []
    size = 0
    before: tuple[int, ...] = ()
    for place in sorted(members, key=lambda place: rows[place].token_ids):
        text = rows[place].token_ids
        new = len(text) - (common_length(before, text) if chosen else 0)
        if chosen and size + new > tokens:
            yield MicroBatch(rows=tuple(chosen), prefix=prefix, nested=True)
            chosen, size, new = [], 0, len(text)
        chosen.append(place)
        size, before = size + new, text
    yield MicroBatch(rows=tuple(chosen), prefix=prefix, nested=True)


def _pack(rows: Sequence[Row], members: Sequence[int], prefix: int, tokens: int) -> Iterator[MicroBatch]:
    """Micro-batches of the member rows, longest rows first, so that rows of similar length share a micro-batch."""
    distinct, origins = find_distinct([rows[place] for place in members])
    copies: list[list[int]] = [[] for _ in distinct]
    for place, origin in zip(members, origins, strict=True):
        copies[origin].append(place)
    chosen: list[int] = []
    count, longest = 0, 0
    for origin in sorted(range(len(distinct)), key=lambda origin: -len(distinct[origin].token_ids)):
        if chosen and prefix + (count + 1) * (longest - prefix) > tokens:
            yield MicroBatch(rows=tuple(chosen), prefix=prefix)
            chosen, count = [], 0
        longest = longest if chosen else len(distinct[origin].token_ids)
        chosen += copies[origin]
        count += 1
    if chosen:
        yield MicroBatch(rows=tuple(chosen), prefix=prefix)


def find_distinct(rows: Sequence[Row]) -> tuple[list[Row], list[int]]:
    """[B] rows -> the rows that differ in their tokens or in which of them were drawn, and for each of the B its own.

    Episodes of one task are often equal: the policy has drawn the same tokens, and the world has answered alike.
    """
    keys = [(row.token_ids, row.spans) for row in rows]
    first: dict[object, Row] = {}
    for key, row in zip(keys, rows, strict=True):
        first.setdefault(key, row)
    places = {key: place for place, key in enumerate(first)}
    return list(first.values()), [places[key] for key in keys]


def common_prefix_length(rows: Sequence[Row]) -> int:
    """Number of leading tokens that all rows share.

    The token that predicts the first drawn token of any row is never counted: each row computes it by itself.
    """
    most = max(min(row.spans[0][1] for row in rows) - 1, 0)
    return len(_common_start([row.token_ids[:most] for row in rows]))


def common_beginning(rows: Sequence[Row], micros: Sequence[MicroBatch]) -> tuple[int, ...]:
    """Tokens that all shared prefixes of these micro-batches begin with; empty if that saves little.

    They are encoded twice, and in no micro-batch: once without gradient, and once for the backward pass.
    """
    prefixes = [rows[micro.rows[0]].token_ids[: micro.prefix] for micro in micros if micro.prefix]
    common = _common_start(prefixes) if prefixes else ()
    return common if (len(prefixes) - 2) * len(common) >= MIN_SAVED_TOKENS else ()


def _common_start(texts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    first, last = min(texts), max(texts)  # in the order of the alphabet, so all others lie between them
    return first[: common_length(first, last)]


def cut_where_padding_grows(lengths: Sequence[int], most: int) -> list[slice]:
    """Runs of consecutive rows, each of which is padded by at most `most` tokens."""
    runs: list[slice] = []
    start = longest = total = 0
    for at, length in enumerate(lengths):
        longest, total = max(longest, length), total + length
        if longest * (at + 1 - start) - total > most:
            runs.append(slice(start, at))
            start, longest, total = at, length, length
    return [*runs, slice(start, len(lengths))]
