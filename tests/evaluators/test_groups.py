"""Two groups of one run's episodes: exact by hand and by scipy, and rarely significant if they are alike."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gymcp.evaluators.statistics import compare_groups, fisher_exact, shuffle_groups


def test_fisher_is_the_sum_of_the_tables_that_are_as_unlikely() -> None:
    # 1 of 1 against 0 of 3: of the 4 places of the one success, 1 is as unlikely as this
    assert fisher_exact(1, 1, 0, 3) == 0.25
    assert fisher_exact(2, 4, 2, 4) == 1.0


@pytest.mark.parametrize("table", [(3, 10, 8, 10), (0, 5, 9, 30), (7, 7, 1, 40), (4, 9, 4, 9), (12, 80, 60, 420)])
def test_fisher_agrees_with_scipy(table: tuple[int, int, int, int]) -> None:
    a, of_a, b, of_b = table
    (_, expected) = stats.fisher_exact(np.array([[a, of_a - a], [b, of_b - b]]))
    assert fisher_exact(*table) == pytest.approx(expected)


def test_one_empty_group_cannot_be_compared() -> None:
    found = compare_groups([("a", False, 1.0), ("b", False, 0.0)])
    assert (found.difference, found.p, found.method) == (None, None, "")


def test_single_trials_are_compared_exactly() -> None:
    found = compare_groups([("a", True, 1.0), *((name, False, 0.0) for name in "bcd")])
    assert (found.difference, found.p, found.method) == (1.0, 0.25, "Fisher's exact test")


def test_shuffles_agree_with_the_exact_test_if_each_task_has_one_trial() -> None:
    tasks = [[(n < 8, float(n % 4 == 0 or n >= 12))] for n in range(30)]
    exact = fisher_exact(2, 8, sum(n % 4 == 0 or n >= 12 for n in range(8, 30)), 22)
    assert shuffle_groups(tasks) == pytest.approx(exact, abs=0.02)


def test_the_order_of_the_tasks_makes_no_difference() -> None:
    draw = np.random.default_rng(3)
    episodes = [(f"t{n % 12}", bool(draw.random() < 0.3), float(draw.random() < 0.5)) for n in range(36)]
    shuffled = sorted(episodes, key=lambda each: (each[0][::-1],))
    assert compare_groups(episodes).p == compare_groups(shuffled).p


def test_groups_that_are_alike_seldom_differ_although_trials_of_a_task_do() -> None:
    """Tasks are always or never solved, and an outage takes whole tasks: 200 runs, level 5 %.

    A test that takes trials for independent would call far more of these runs different.
    """
    draw = np.random.default_rng(1)
    found, naive = [], []
    for _ in range(200):
        solved, retried = draw.random(20) < 0.5, draw.random(20) < 0.3
        if not 0 < retried.sum() < 20:
            continue
        tasks = [[(bool(retried[n]), float(solved[n]))] * 4 for n in range(20)]
        found.append(shuffle_groups(tasks) < 0.05)
        both, rest = int((solved & retried).sum()) * 4, int((solved & ~retried).sum()) * 4
        naive.append(fisher_exact(both, int(retried.sum()) * 4, rest, int((~retried).sum()) * 4) < 0.05)
    assert np.mean(found) <= 0.09
    assert np.mean(naive) > 0.25


def test_a_real_difference_is_found() -> None:
    draw = np.random.default_rng(2)
    retried = draw.random((40, 3)) < 0.3
    success = draw.random((40, 3)) < np.where(retried, 0.2, 0.8)
    episodes = [(f"t{n}", bool(retried[n, k]), float(success[n, k])) for n in range(40) for k in range(3)]
    found = compare_groups(episodes)
    assert found.difference is not None
    assert found.difference < -0.4
    assert found.p is not None
    assert found.p < 0.01
    assert found.method == "groups shuffled among tasks, 2000 times, seed 0"
