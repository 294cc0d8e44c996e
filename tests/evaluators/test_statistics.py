from __future__ import annotations

import math

import pytest

from gymcp.evaluators.statistics import (
    Interval,
    bootstrap_by_task,
    mean_ci95,
    pass_at_k,
    pass_hat_k,
    wilson,
    wilson_by_task,
)


def bounds(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return round(interval.low, 4), round(interval.high, 4)


@pytest.mark.parametrize(
    ("successes", "n", "expected"),
    [
        (8, 10, (0.4902, 0.9433)),
        (5, 10, (0.2366, 0.7634)),
        (0, 10, (0.0, 0.2775)),  # z^2 / (n + z^2)
        (10, 10, (0.7225, 1.0)),
        (1, 1, (0.2065, 1.0)),
        (81, 263, (0.2553, 0.3662)),  # Newcombe 1998, table I
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ],
)
def test_wilson_agrees_with_known_numbers(successes: int, n: int, expected: tuple[float, float]) -> None:
    assert bounds(wilson(successes, n)) == expected


def test_wilson_without_trials_is_none() -> None:
    assert wilson(0, 0) is None


def test_wilson_never_excludes_the_mean() -> None:
    for n in range(1, 60):
        for successes in range(n + 1):
            interval = wilson(successes, n)
            assert interval is not None
            assert 0 <= interval.low <= successes / n <= interval.high <= 1


def test_the_bootstrap_draws_whole_tasks() -> None:
    # two tasks, one always solved and one never: a resample has mean 0, 1/2 or 1, with chances 1/4, 1/2 and 1/4
    assert bootstrap_by_task({"a": [1.0] * 50, "b": [0.0] * 50}) == Interval(
        low=0.0, high=1.0, method="bootstrap by task, 2 tasks, 10000 resamples, seed 0"
    )


def test_the_bootstrap_of_many_tasks_is_near_the_normal_interval() -> None:
    scores = {str(n): [float(n % 2)] for n in range(400)}  # mean 1/2, standard error 1/40
    low, high = bounds(bootstrap_by_task(scores))
    assert low == pytest.approx(0.5 - 1.96 / 40, abs=0.004)
    assert high == pytest.approx(0.5 + 1.96 / 40, abs=0.004)


def test_the_bootstrap_weighs_episodes_not_tasks() -> None:
    # the mean over episodes is 3/4; the mean over tasks would be 1/2
    scores = {f"solved{n}": [1.0, 1.0, 1.0] for n in range(100)} | {f"failed{n}": [0.0] for n in range(100)}
    low, high = bounds(bootstrap_by_task(scores))
    assert 0.67 < low < 0.75 < high < 0.82


def test_the_bootstrap_does_not_depend_on_order_and_does_on_the_seed() -> None:
    scores = {str(n): [n / 30, (n * 7 % 30) / 30] for n in range(30)}
    turned = {task: scores[task][::-1] for task in reversed(scores)}
    assert bootstrap_by_task(scores, seed=3) == bootstrap_by_task(turned, seed=3)
    assert bounds(bootstrap_by_task(scores, seed=3)) != bounds(bootstrap_by_task(scores, seed=4))


def test_chunks_do_not_change_the_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {str(n): [n / 30] for n in range(30)}
    whole = bootstrap_by_task(scores)
    monkeypatch.setattr("gymcp.evaluators.statistics.intervals._CHUNK_DRAWS", 1000)
    assert bootstrap_by_task(scores) == whole


@pytest.mark.parametrize("scores", [{}, {"a": []}])
def test_without_scores_there_is_no_interval(scores: dict[str, list[float]]) -> None:
    assert mean_ci95(scores) is None
    assert bootstrap_by_task(scores) is None


def test_single_trials_of_0_or_1_get_wilson() -> None:
    scores = {str(n): [float(n < 8)] for n in range(10)}
    assert mean_ci95(scores) == wilson(8, 10)


def test_trials_get_wilson_by_task_and_partial_scores_the_bootstrap() -> None:
    trials = {"a": [1.0, 0.0], "b": [1.0, 1.0]}
    partial = {"a": [0.5], "b": [1.0]}
    assert mean_ci95(trials) == wilson_by_task(trials)
    assert mean_ci95(partial) == bootstrap_by_task(partial)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({str(n): [1.0, 1.0] for n in range(10)}, wilson(10, 10)),
        ({str(n): [0.0] * 3 for n in range(10)}, wilson(0, 10)),
        ({str(n): [0.5] for n in range(10)}, wilson(5, 10)),
        ({"only": [1.0, 0.0, 1.0, 0.0]}, wilson(0.5, 1)),
    ],
)
def test_no_spread_between_tasks_is_not_certainty(scores: dict[str, list[float]], expected: Interval) -> None:
    assert mean_ci95(scores) == expected


def test_tasks_without_a_score_do_not_count() -> None:
    assert mean_ci95({"a": [1.0], "lost": []}) == wilson(1, 1)


def test_pass_at_k_and_pass_hat_k_match_figures_by_hand() -> None:
    # 4 trials, 2 solved: of the 6 pairs 1 is solved twice, 4 once, 1 never
    assert [pass_at_k(4, 2, k) for k in (1, 2, 3, 4)] == [0.5, pytest.approx(5 / 6), 1.0, 1.0]
    assert [pass_hat_k(4, 2, k) for k in (1, 2, 3, 4)] == [0.5, pytest.approx(1 / 6), 0.0, 0.0]


def test_pass_at_k_is_exact_with_huge_factorials() -> None:
    assert math.isclose(pass_at_k(2000, 1, 1000), 0.5)
    assert math.isclose(pass_hat_k(2000, 1999, 1000), 0.5)
