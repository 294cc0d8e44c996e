from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from state_records import visit

from gymcp.trainers.credit.anchors import Anchor, anchor_codes
from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.diagnostics import anchor_statistics, correlation_ratio
from gymcp.trainers.credit.filters import DropUninformative
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.step_batch import batch_of, batch_of_columns
from gymcp.trainers.run.iteration import credit_metrics

RECORDS = [
    visit(1.0, ("w", "x"), ("w", "y"), ("v", "x"), group="a"),
    visit(0.0, ("w", "x"), ("v", "x"), ("v", "x"), group="a"),
    visit(0.0, ("w", "x"), group="b"),
]


@pytest.mark.parametrize(
    ("anchor", "expected"),
    [
        ("world", [0, 0, 1, 0, 1, 1, 2]),
        ("world+observation", [0, 1, 2, 0, 2, 2, 3]),
        ("world+history", [0, 1, 2, 0, 3, 4, 5]),
        ("recorded", [0, 1, 2, 0, 2, 2, 3]),
        ("turn", [0, 1, 2, 0, 1, 2, 3]),
        ("text", [0, 1, 0, 0, 0, 0, 2]),
    ],
)
def test_anchors_tell_states_apart_within_a_group(anchor: Anchor, expected: list[int]) -> None:
    assert anchor_codes(RECORDS, anchor).tolist() == expected


def test_statistics_count_what_can_be_compared() -> None:
    batch, state = batch_of(RECORDS), anchor_codes(RECORDS, "world+observation")
    found = anchor_statistics(batch, state, make_preset("gigpo", norm="mean", step_weight=1.0, gamma=1.0))
    assert (found.states, found.largest_group, found.mean_group) == (4, 3, 7 / 4)
    assert found.singletons == pytest.approx(2 / 7)  # y, and the whole of group b
    assert found.self_repeats == pytest.approx(1 / 7)  # the second episode is twice in (v, x)
    # Step part: (w, x) +-.5; (v, x) with returns 1, 0, 0: 2/3, -1/3, -1/3. Episode part: six steps of .5.
    assert found.step_share == pytest.approx((1 + 4 / 3) / (1 + 4 / 3 + 3))
    less = make_preset("gigpo", norm="mean", gamma=1.0, step_weight=0.5)
    weighed = anchor_statistics(batch, state, less)
    assert weighed.step_share == pytest.approx((1 + 4 / 3) / (1 + 4 / 3 + 6)), "as the preset weighs it"


@pytest.mark.parametrize(
    ("nodes", "expected"), [("recorded", (3, 3)), ("world", (3, 3)), ("text", (3, 5)), ("world+history", (6, 2))]
)
def test_a_run_counts_states_as_its_preset_tells_them_apart(nodes: str, expected: tuple[int, int]) -> None:
    """The number of states, and the steps in the largest; a recorded key is the same in both groups."""
    batch = batch_of(RECORDS)
    for name in ("gigpo", "graphgpo"):
        preset = make_preset(name, nodes=nodes)
        found = credit_metrics(assign_credit(batch, preset), batch, preset)
        assert (found["anchor/states"], found["anchor/largest_group"]) == expected


def test_a_run_counts_the_states_of_episodes_that_a_filter_dropped() -> None:
    batch = batch_of([*RECORDS, RECORDS[-1]])
    preset = replace(make_preset("gigpo", nodes="text"), filters=(DropUninformative(),))
    credit = assign_credit(batch, preset)
    assert credit.dropped == 2  # group b has equal scores
    assert credit_metrics(credit, batch, preset)["anchor/states"] == 3


def test_a_step_advantage_that_only_follows_the_index_is_detected() -> None:
    batch = batch_of_columns([[0.0, 0.0, 1.0]] * 2, ["g", "g"])
    turn = batch.keys["turn"]
    assert correlation_ratio(turn.astype(np.float64), batch.keys["group"], turn) == pytest.approx(1.0)
    assert correlation_ratio(np.array([1.0, 1, 1, -1, -1, -1]), batch.keys["group"], turn) == pytest.approx(0.0)
    assert correlation_ratio(np.zeros(6), batch.keys["group"], turn) == 0.0
