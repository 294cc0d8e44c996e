"""HiPER: options with values at two levels, against the vector and hand computation."""

from __future__ import annotations

import numpy as np
from signal_records import PIECES, CountingModel, make_record, make_sample, make_step
from vectors import VECTORS, near

from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.signals.options import (
    OptionValueColumns,
    estimate_options,
    find_head_places,
    find_token_kinds,
)
from gymcp.trainers.credit.signals.registry import add_signals
from gymcp.trainers.credit.step_batch import batch_of, batch_of_columns


def test_hae_at_both_levels() -> None:
    vector = VECTORS["hae"]
    inputs = vector["inputs"]
    rewards = np.array(inputs["rewards"])
    low, high = np.array(inputs["v_low"]), np.array(inputs["v_high_at_boundary"])
    found = estimate_options(
        rewards,
        OptionValueColumns(low=low, high=high, end=np.zeros(5)),
        np.array(inputs["switch"], bool),
        np.array([0, 5]),
        gamma=inputs["gamma"],
        lam=inputs["lam_turn"],
        lam_high=inputs["lam_seg"],
    )
    assert found.low.tolist() == near(vector["A_low_per_turn"])
    assert found.low_returns.tolist() == near(vector["ret_low"])
    assert found.high.tolist() == near(vector["A_high_per_turn"])
    assert np.nan_to_num(found.high_returns).tolist() == near(vector["ret_high"])
    # .1 + .9 * .55, and .9 of that; then the score, discounted
    assert found.end.tolist() == near([0.5355, 0.595, 0.81, 0.9, 1.0])


def test_hae_gives_each_kind_of_token_its_level() -> None:
    """The vector's first token of a step is its subgoal, the others its action."""
    vector = VECTORS["hae"]
    inputs = vector["inputs"]
    low, high = np.array(inputs["v_low"]), np.array(inputs["v_high_at_boundary"])
    batch = batch_of_columns(
        [inputs["rewards"]], "g", option_values=[inputs["switch"]], option_low=[low.tolist()],
        option_high=[high.tolist()], option_end=[[0.0] * 5],
    ).with_tokens(np.array([3] * 5), option_kind=np.array([1.0, 0.0, 0.0] * 5))  # fmt: skip
    preset = make_preset("hiper", gamma=inputs["gamma"], lam=inputs["lam_turn"], lam_high=inputs["lam_seg"])
    (term,) = assign_credit(batch, preset).terms
    assert term.token_advantage is not None
    assert term.token_advantage.reshape(5, 3).tolist() == [near(row) for row in vector["adv_tokens"]]


def test_segments_of_different_episodes_do_not_mix() -> None:
    """Alone and beside another episode, the same."""
    values = OptionValueColumns(low=np.array([0.3, 0.4]), high=np.array([0.2, 0.1]), end=np.zeros(2))
    twice = OptionValueColumns(low=np.tile(values.low, 2), high=np.tile(values.high, 2), end=np.zeros(4))
    rewards, begins = np.array([0.5, 1.0]), np.array([True, False])
    rule = {"gamma": 0.9, "lam": 0.5, "lam_high": 0.5}
    alone = estimate_options(rewards, values, begins, np.array([0, 2]), **rule)
    both = estimate_options(np.tile(rewards, 2), twice, np.tile(begins, 2), np.array([0, 2, 4]), **rule)
    for name in ("low", "high", "end"):
        assert getattr(both, name).tolist() == [*getattr(alone, name).tolist()] * 2


def test_tokens_are_of_the_switch_of_the_subgoal_or_of_the_action() -> None:
    begins = [PIECES[token] for token in (20, 21, 22, 23, 25, 25)]
    assert find_token_kinds(begins).tolist() == [2, 2, 1, 1, 0, 0]
    assert find_token_kinds([PIECES[24], "go"]).tolist() == [2, 0]
    assert find_token_kinds(["go"]).tolist() == [0]
    places = find_head_places(np.array([2.0, 2, 1, 1, 0, 0, 2, 1]), np.array([6, 2]))
    assert {name: at.tolist() for name, at in places.items()} == {
        "option_low": [4, 6], "option_high": [0, 6], "option_end": [0, 6],
    }  # fmt: skip


def test_a_step_begins_a_segment_if_it_says_so_and_the_first_one_always_does() -> None:
    ids = ((20, 21, 22, 23, 25), (24, 25), (20, 21, 22, 23, 25), (25,))
    drawn_options = make_record(*(make_step(sampled=make_sample([2], own)) for own in ids[:3]))
    other = make_record(make_step(sampled=make_sample([2], ids[3])), trial=1)
    batch = add_signals(batch_of([drawn_options, other]), make_preset("hiper"), CountingModel())
    assert batch.column("option_values").tolist() == [1, 0, 1, 1]
    assert batch.column("option_low").tolist() == [4, 6, 11, 12]
    assert batch.column("option_high").tolist() == [100, 105, 107, 112]
    assert batch.token_columns["option_kind"].tolist() == [2, 2, 1, 1, 0, 2, 0, 2, 2, 1, 1, 0, 0]
