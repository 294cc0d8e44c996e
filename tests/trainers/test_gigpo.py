from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymcp.trainers.gigpo import Norm, gigpo, returns_to_go

# The reference vector `gigpo_traj_weighted`: the official function run on three trajectories in two groups.
REWARDS = [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
ANCHORS = [["s0", "s1", "s2"], ["s0", "s1", "s1", "s3"]]


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("mean", [[0.95125, 1.133333, 0.5], [-0.95125, -0.816667, -0.816667, -0.5]]),
        ("mean_std", [[1.414211, 1.861804, 0.707106], [-1.414211, -1.284455, -1.284455, -0.707106]]),
    ],
)
def test_gigpo_matches_the_official_function(norm: Norm, expected: list[list[float]]) -> None:
    advantages = gigpo(REWARDS, ANCHORS, gamma=0.95, step_weight=1.0, norm=norm)
    assert [pytest.approx(row, abs=2e-6) for row in expected] == advantages


def test_a_group_of_one_episode_has_its_own_return_as_advantage() -> None:
    assert gigpo([[1.0]], [["s0"]]) == [[1.0]]


def test_gigpo_splits_credit_where_episodes_part_ways() -> None:
    rewards = [[0.0, 1.0], [0.0, 0.0]]  # same first state; then one episode succeeds
    assert gigpo(rewards, [["s", "x"], ["s", "y"]], gamma=1.0) == [[1.0, 0.5], [-1.0, -0.5]]


def test_returns_to_go_discount_what_is_ahead() -> None:
    assert returns_to_go([1.0, 0.0, 4.0], 0.5) == [2.0, 2.0, 4.0]


ragged = st.lists(
    st.lists(st.tuples(st.floats(-5, 5), st.sampled_from("abcd")), min_size=1, max_size=6), min_size=2, max_size=6
)


@given(ragged, st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter(episodes: list[list[tuple[float, str]]], rng: object) -> None:
    order = list(range(len(episodes)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    plain = gigpo([[r for r, _ in e] for e in episodes], [[a for _, a in e] for e in episodes])
    shuffled = gigpo([[r for r, _ in episodes[i]] for i in order], [[a for _, a in episodes[i]] for i in order])
    assert [pytest.approx(plain[i], abs=1e-9) for i in order] == shuffled


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.integers(2, 5))
def test_equal_episodes_have_no_advantage(anchors: list[str], copies: int) -> None:
    rewards = [0.0] * (len(anchors) - 1) + [1.0]
    advantages = gigpo([rewards] * copies, [[f"{a}{t}" for t, a in enumerate(anchors)]] * copies)
    assert advantages == [pytest.approx([0.0] * len(anchors), abs=1e-12)] * copies
