"""Figures of learning curves (benchmarks/curve_figures.py), calculated by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from curve_figures import compare_pairs, curve_of, draw

ROWS = [
    {"iteration": 0, "test/seeds/success": 0.2, "test/seeds/calls_of_solved": 3.0},
    {"iteration": 1, "success": 0.3, "anchor/singletons": 0.25, "anchor/step_share": 0.2},
    {"iteration": 2, "test/seeds/success": 0.4, "anchor/singletons": 0.75, "anchor/step_share": 0.4},
    {
        "iteration": 4,
        "test/seeds/success": 0.9,
        "test/seeds/calls_of_solved": 2.0,
        "test/seeds/calls_of_solved_beyond_gold": 0.5,
    },
]


def test_a_curve_holds_the_evaluations_among_the_rows() -> None:
    curve = curve_of(ROWS, 10, seed=3)
    assert (curve.seed, curve.episodes, curve.success) == (3, (0, 20, 40), (0.2, 0.4, 0.9))
    assert (curve.final, curve.final_calls, curve.final_wasted) == (0.9, 2.0, 0.5)
    assert math.isnan(curve.calls[1])
    assert curve.singletons == 0.5
    assert curve.step_share == pytest.approx(0.3)
    assert curve.area == pytest.approx((20 * 0.3 + 20 * 0.65) / 40)


def test_pairs_are_compared_by_their_differences() -> None:
    gain = compare_pairs([(0.5, 0.3), (0.9, 0.5)])
    assert gain.mean == pytest.approx(0.3)
    half = 12.7062 * 0.1  # Student's t with one degree of freedom, times the standard error of 0.2 and 0.4
    assert gain.low == pytest.approx(0.3 - half, abs=1e-4)
    assert gain.high == pytest.approx(0.3 + half, abs=1e-4)


def test_one_pair_has_no_interval() -> None:
    gain = compare_pairs([(0.5, 0.3)])
    assert gain.mean == pytest.approx(0.2)
    assert (gain.low, gain.high) == (None, None)


def test_curves_of_different_length_can_be_drawn(tmp_path: Path) -> None:
    draw(
        {"grpo": [curve_of(ROWS, 10, seed=0), curve_of(ROWS[:3], 10, seed=1)]}, tmp_path / "a" / "curves.png", "ground"
    )
    assert (tmp_path / "a" / "curves.png").read_bytes().startswith(b"\x89PNG")
