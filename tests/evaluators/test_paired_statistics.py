"""Paired statistics, checked against scipy and statsmodels, by hand, and by simulation."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as their_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint
from trajectories import near

from gymcp.evaluators.statistics import (
    Interval,
    Scores,
    compare_paired,
    flake_index,
    holm,
    mcnemar,
    noise_floor,
    plan_trials,
    sign_flip,
    t_by_task,
    wilson,
    wilson_by_task,
    within_task_variance,
)
from gymcp.evaluators.statistics.intervals import t_quantile

FLOATS = st.floats(-1, 1).map(lambda value: round(value, 3))


def scores(*of_tasks: Sequence[float]) -> Scores:
    return {str(n): of_task for n, of_task in enumerate(of_tasks)}


@given(st.integers(1, 400), st.integers(0, 400))
def test_wilson_equals_statsmodels(n: int, successes: int) -> None:
    successes = min(n, successes)
    found = wilson(successes, n)
    assert found is not None
    low, high = proportion_confint(successes, n, method="wilson")
    assert (found.low, found.high) == (near(low), near(high))


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 9, 30, 1000])
def test_the_t_quantile_equals_scipy(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)


@given(st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=60))
def test_t_by_task_of_single_values_equals_scipy(values: list[float]) -> None:
    found = t_by_task({str(n): [value] for n, value in enumerate(values)})
    assert found is not None
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=max(stats.sem(values), 1e-300))
    assert (found.low, found.high) == (near(low, 1e-4), near(high, 1e-4))


def test_copies_of_a_trial_make_no_interval_narrower() -> None:
    once = scores(*([float(n < 30)] for n in range(100)))
    thrice = {task: [*of_task] * 3 for task, of_task in once.items()}
    assert wilson_by_task(thrice) is not None
    one, three = wilson_by_task(once), wilson_by_task(thrice)
    assert one is not None
    assert three is not None
    assert (one.low, one.high) == (near(three.low), near(three.high))
    assert three.method == "Wilson by task, 100 tasks, 300 episodes, design effect 3.03"


def test_independent_trials_make_intervals_narrower() -> None:
    draw = random.Random(0)
    many = scores(*([float(draw.random() < 0.3) for _ in range(4)] for _ in range(200)))
    found, simple = wilson_by_task(many), wilson(sum(map(sum, many.values())), 800)
    assert found is not None
    assert simple is not None
    assert found.high - found.low == pytest.approx(simple.high - simple.low, rel=0.15)


@pytest.mark.parametrize("of_tasks", [[[1.0, 1.0], [1.0]], [[0.0], [0.0]], [[1.0, 0.0]]])
def test_tasks_with_the_same_mean_get_wilsons_interval(of_tasks: list[list[float]]) -> None:
    mean = sum(map(sum, of_tasks)) / sum(map(len, of_tasks))
    assert wilson_by_task(scores(*of_tasks)) == wilson(mean * len(of_tasks), len(of_tasks))


@settings(max_examples=50)
@given(st.lists(FLOATS, min_size=1, max_size=8))
def test_exhaustive_sign_flips_equal_scipy(differences: list[float]) -> None:
    assert sign_flip(differences) == pytest.approx(_by_scipy(differences), abs=1e-9)


def _by_scipy(differences: list[float]) -> float:
    values = [each for each in differences if each]
    if len(values) < 2:
        return 1.0
    # flipping pairs (x, 0) is flipping the sign of x
    pairs: Any = (np.array(values), np.zeros(len(values)))
    found = stats.permutation_test(
        pairs,
        lambda x, y, axis: abs(np.sum(x - y, axis=axis)),
        permutation_type="samples",
        vectorized=True,
        alternative="greater",
        n_resamples=2**16,
    )
    return float(found.pvalue)


def test_drawn_sign_flips_are_close_to_all_sign_flips() -> None:
    differences = [round(random.Random(n).gauss(0.1, 0.3), 3) for n in range(16)]
    exact = sign_flip(differences)
    drawn = sign_flip([*differences, 1e-9])  # one more than are all tried, which moves nothing
    assert drawn == pytest.approx(exact, abs=0.005)
    assert sign_flip([*differences, 1e-9]) == drawn


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_equals_statsmodels(better: int, worse: int) -> None:
    theirs = their_mcnemar([[5, better], [worse, 5]], exact=True).pvalue if better + worse else 1.0
    assert mcnemar(better, worse) == pytest.approx(min(1.0, theirs), abs=1e-9)


@pytest.mark.parametrize("p_values", [[0.04], [0.01, 0.04, 0.03, 0.02], [0.5, 0.001, 0.9, 0.001]])
def test_holm_equals_statsmodels(p_values: list[float]) -> None:
    found = holm({str(n): p for n, p in enumerate(p_values)})
    assert list(found.values()) == pytest.approx(multipletests(p_values, method="holm")[1])


def test_a_paired_comparison_matches_figures_by_hand() -> None:
    found = compare_paired(scores([0.0], [0.0], [1.0], [1.0], [0.0]), scores([1.0], [1.0], [1.0], [0.0]))
    assert (found.tasks, found.difference, found.better, found.worse) == (4, 0.25, 2, 1)
    assert found.p_permutation == 1.0  # all 8 signs of three ones sum to 1 or more
    assert found.p_mcnemar == 1.0
    half = 3.182446305 * math.sqrt((0.75**2 * 2 + 0.25**2 + 1.25**2) / 3 / 4)
    assert found.ci95 is not None
    assert found.ci95.high == pytest.approx(0.25 + half, rel=2e-3)


def test_a_pair_with_trials_has_no_mcnemar_and_every_task_weighs_alike() -> None:
    found = compare_paired(scores([0.0, 1.0], [0.0]), scores([1.0, 1.0, 1.0, 1.0], [0.0]))
    assert (found.difference, found.p_mcnemar) == (0.25, None)


def test_runs_that_never_differ_are_not_certainly_equal() -> None:
    alike = scores(*([1.0] for _ in range(20)))
    assert compare_paired(alike, alike).ci95 == Interval(
        low=near(-0.1611, 1e-4),
        high=near(0.1611, 1e-4),
        method="Wilson, 20 tasks that differ alike",
    )
    assert compare_paired(alike, alike).p_permutation == 1.0
    assert compare_paired(scores([1.0]), scores([1.0])).ci95 is None
    assert compare_paired({"a": [1.0]}, {"b": [1.0]}).difference is None
    seconds = scores([3.0], [3.0])
    assert compare_paired(seconds, seconds).ci95 is None


def test_the_flake_index_is_the_chance_that_two_trials_differ() -> None:
    found = flake_index({"always": [1.0, 1.0], "half": [1.0, 0.0, 1.0, 0.0], "once": [0.0], "partly": [0.5, 0.9]})
    assert found == {"always": 0.0, "half": 4 / 6, "partly": 0.0}


def test_without_repeated_tasks_there_is_no_noise_floor() -> None:
    single = scores([1.0], [0.0])
    assert (within_task_variance(single), noise_floor(single), noise_floor({})) == (None, None, None)


def test_the_noise_floor_matches_figures_by_hand() -> None:
    trials = scores([1.0, 0.0], [1.0, 0.0])  # variance 1/2 within each; each run's mean has 1/2 * (1/2 + 1/2) / 4
    assert within_task_variance(trials) == 0.5
    assert noise_floor(trials) == pytest.approx(1.959964 * math.sqrt(2 * 0.5 * 1 / 4))
    assert noise_floor(trials, scores([1.0], [1.0])) == pytest.approx(1.959964 * math.sqrt(0.5 * (1 + 2) / 4))


def test_two_runs_of_one_policy_stay_below_the_noise_floor_in_95_percent() -> None:
    draw = np.random.default_rng(0)
    chance = draw.beta(0.5, 0.5, 60)
    runs = draw.binomial(1, chance[:, None, None], (60, 400, 4)).astype(float)
    below = 0
    for n in range(0, 400, 2):
        a, b = ({str(task): list(runs[task, n + side]) for task in range(60)} for side in (0, 1))
        floor = noise_floor(a, b)
        assert floor is not None
        below += abs(runs[:, n].mean() - runs[:, n + 1].mean()) <= floor
    assert 0.90 <= below / 200 <= 0.99


def test_the_number_of_tasks_for_a_power_equals_statsmodels() -> None:
    for resolution, within, trials in product((0.05, 0.1), (0.05, 0.2), (1, 4)):
        plan = plan_trials(resolution, tasks=100, trials=trials, within=within, between=0.01)
        effect = resolution / math.sqrt(0.01 + 2 * within / trials)
        theirs = TTestPower().solve_power(effect_size=effect, alpha=0.05, power=0.8)
        assert plan.tasks == pytest.approx(theirs, abs=4, rel=0.02)  # theirs is Student's, ours normal
        seen = TTestPower().power(
            effect_size=plan.detectable / math.sqrt(0.01 + 2 * within / trials), nobs=100, alpha=0.05
        )
        assert seen == pytest.approx(0.8, abs=0.01)


def test_more_trials_help_until_only_more_tasks_do() -> None:
    plan = plan_trials(0.05, tasks=100, trials=1, within=0.2)
    assert plan.trials == math.ceil(2 * 0.2 * (1.959964 + 0.841621) ** 2 / (100 * 0.05**2))
    enough = plan_trials(0.05, tasks=100, trials=plan.trials, within=0.2)
    assert enough.detectable <= 0.05
    assert plan_trials(0.05, tasks=100, trials=1, within=0.2, between=0.1).trials is None


@pytest.mark.parametrize(("tasks", "trials"), [(50, 4), (100, 1), (100, 4)])
def test_intervals_cover_the_truth_in_about_95_percent(tasks: int, trials: int) -> None:
    """Simulation of 600 runs each, enough to tell 95 from 92 or 98; benchmarks/intervals.py has the full one."""
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(600):
        chance = draw.beta(0.8, 1.2, tasks)
        found = wilson_by_task(scores(*draw.binomial(1, chance[:, None], (tasks, trials)).astype(float).tolist()))
        assert found is not None
        held += found.low <= 0.4 <= found.high
    assert 0.92 <= held / 600 <= 0.98
