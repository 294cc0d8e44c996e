"""The choice of a slot for a prompt, and the prefix it finds there."""

from __future__ import annotations

import numpy as np

from gymcp.agents.policies.engine.slots import Ids, Slots


def ids(*tokens: int) -> Ids:
    return np.array(tokens, dtype=np.int32)


def fill_slots(*contents: tuple[int, ...]) -> Slots:
    """Idle slots that hold these tokens, the least recently used first."""
    slots = Slots(len(contents), 16)
    for content in contents:
        slot = slots.assign(ids(*content))
        assert slot is not None
    for slot, content in enumerate(contents):
        slots.filled[slot] = len(content)
        slots.release(slot)
    return slots


def test_the_next_turn_continues_where_the_last_one_ended() -> None:
    slots = fill_slots((1, 2), (1, 2, 3), (1, 2, 9))
    assert slots.assign(ids(1, 2, 3, 4, 5)) == 1
    assert slots.filled.tolist() == [2, 3, 3]
    assert slots.busy.tolist() == [False, True, False]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    slots = fill_slots(
        (1, 2, 3),
    )
    assert slots.assign(ids(1, 2, 3)) == 0
    assert slots.filled[0] == 2


def test_an_empty_slot_is_assigned_first_then_the_least_recently_used() -> None:
    slots = fill_slots((1, 2), (3, 4))
    assert slots.assign(ids(5, 6)) == 0
    slots.release(0)
    assert slots.assign(ids(7, 8)) == 1
    fresh = Slots(3, 16)
    assert [fresh.assign(ids(1, 2)), fresh.assign(ids(1, 2)), fresh.assign(ids(1, 2))] == [0, 1, 2]
    assert fresh.assign(ids(1, 2)) is None


def test_an_evicted_slot_keeps_the_common_prefix() -> None:
    slots = fill_slots((1, 2, 3, 4))
    assert slots.assign(ids(1, 2, 9)) == 0
    assert slots.filled[0] == 2


def test_the_best_source_has_the_longest_common_prefix() -> None:
    slots = fill_slots((8,), (1, 2, 7), (1, 2, 3, 4))
    slot = slots.assign(ids(1, 2, 3, 9))
    assert slot == 0
    assert slots.find_source(0) == (2, 3)
    assert slots.find_source(0, among=[1]) == (1, 2)
    assert slots.find_source(0, among=[]) == (-1, 0)


def test_a_prefix_that_is_already_in_the_slot_is_not_copied() -> None:
    slots = fill_slots((1, 2, 3), (1, 2, 3))
    slot = slots.assign(ids(1, 2, 3, 4))
    assert slot is not None
    assert slots.find_source(slot) == (-1, 0)


def test_busy_slots_keep_their_tokens_when_the_cache_is_discarded() -> None:
    slots = fill_slots((1, 2), (3, 4))
    assert slots.assign(ids(1, 2, 5)) == 0
    slots.forget()
    assert slots.filled.tolist() == [0, 0]
    assert slots.length.tolist() == [3, 0]
    assert slots.prefix_lengths(ids(3, 4)).tolist() == [0, 0]
