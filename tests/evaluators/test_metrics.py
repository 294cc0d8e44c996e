from __future__ import annotations

import numpy as np
import pytest

from gymcp.evaluators.metrics import Bounds, PassK, Rate, Spending, measure
from gymcp.evaluators.statistics import wilson
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow
from gymcp.types import Json, Usage


def row(task: str, score: float | None, **fields: Json) -> EpisodeRow:
    trial = fields.get("trial", 0)
    return EpisodeRow(**{"id": f"{task}/{trial}", "env": "shop", "task": task, "score": score, **fields})


def test_the_metrics_of_a_run_match_figures_by_hand() -> None:
    usage = Usage(tool_calls=2, tool_errors=1, wall_s=0.5)
    summary = measure(
        [
            row("a", 1.0, usage=usage, components={"did": 1.0, "rare": 0.5}),
            row("b", 0.5, usage=usage, components={"did": 0.0}, outcome=Outcome.BUDGET_EXHAUSTED),
            row("c", 0.0, outcome=Outcome.AGENT_ERROR),
            row("d", None, usage=usage, components={"did": 9.0}, outcome=Outcome.ENV_INFRA),
        ]
    )
    assert summary.overall == Rate(
        episodes=4, scored=3, success=1 / 3, ci95=wilson(1, 3), coverage="3/4 scored, 1 infra"
    )
    assert summary.score.value == 0.5
    assert list(summary.outcomes.items()) == [
        (Outcome.SCORED, 1),
        (Outcome.BUDGET_EXHAUSTED, 1),
        (Outcome.AGENT_ERROR, 1),
        (Outcome.ENV_INFRA, 1),
    ]
    assert (summary.tool_calls, summary.tool_errors, summary.episode_s) == (6, 3, 1.5)
    assert summary.components == {"did": 0.5, "rare": 0.5}
    assert summary.breakdowns == {}
    assert summary.pass_k == ()


def test_infrastructure_failures_enter_no_mean() -> None:
    lost = [row(f"lost{n}", None, outcome=Outcome.ENV_INFRA) for n in range(12)]
    kept = [row(f"kept{n}", 1.0) for n in range(488)]
    overall = measure([*lost, *kept]).overall
    assert (overall.success, overall.ci95, overall.coverage) == (1.0, wilson(488, 488), "488/500 scored, 12 infra")


def test_coverage_counts_lost_episodes_by_reason() -> None:
    rows = [
        row("a", None, outcome=Outcome.TIMEOUT),
        row("b", None, outcome=Outcome.POLICY_INFRA),
        row("c", None, outcome=Outcome.GRADER_ERROR),
        row("d", None, outcome=Outcome.CANCELLED),
        row("e", None),
        row("f", 0.0),
    ]
    assert measure(rows).overall.coverage == "1/6 scored, 1 cancelled, 1 grader error, 2 infra, 1 ungraded"


@pytest.mark.parametrize("rows", [[], [row("a", None, outcome=Outcome.TIMEOUT)]])
def test_nothing_scored_is_none_and_not_zero(rows: list[EpisodeRow]) -> None:
    summary = measure(rows)
    assert (summary.overall.success, summary.overall.ci95) == (None, None)
    assert (summary.score.value, summary.score.ci95) == (None, None)


def test_a_replaced_attempt_does_not_count() -> None:
    rows = [
        row("a", None, outcome=Outcome.TIMEOUT, latest=False, usage=Usage(tool_calls=5)),
        row("a", 1.0, attempt=1, usage=Usage(tool_calls=2)),
    ]
    summary = measure(rows)
    assert (summary.overall.coverage, summary.tool_calls) == ("1/1 scored", 2)


def test_each_category_has_its_own_coverage_and_interval() -> None:
    summary = measure(
        [
            row("a", 1.0, tags=("refund", "long")),
            row("b", 0.0, tags=("refund",)),
            row("c", None, tags=("order", "long"), outcome=Outcome.ENV_INFRA),
        ]
    )
    assert summary.breakdowns == {
        "category": {
            "refund": Rate(episodes=2, scored=2, success=0.5, ci95=wilson(1, 2), coverage="2/2 scored"),
            "order": Rate(episodes=1, scored=0, success=None, ci95=None, coverage="0/1 scored, 1 infra"),
        },
        "tag": {"long": Rate(episodes=2, scored=1, success=1.0, ci95=wilson(1, 1), coverage="1/2 scored, 1 infra")},
    }


def test_pass_k_is_over_tasks_and_scored_trials() -> None:
    trials: dict[str, list[float | None]] = {"always": [1.0, 1.0], "once": [1.0, 0.0], "lost": [1.0, None]}
    rows = [row(task, score, trial=n) for task, scores in trials.items() for n, score in enumerate(scores)]
    assert measure(rows).pass_k == (
        PassK(k=1, at=(1 + 0.5 + 1) / 3, hat=(1 + 0.5 + 1) / 3, tasks=3, short=0, fewest=1, most=2),
        PassK(k=2, at=1.0, hat=0.5, tasks=2, short=1, fewest=2, most=2),
    )


def test_a_task_whose_trials_were_all_lost_is_counted_as_short_of_trials() -> None:
    trials: dict[str, list[float | None]] = {"kept": [1.0, 1.0, 0.0], "lost": [None, None, None]}
    rows = [row(task, score, trial=n) for task, scores in trials.items() for n, score in enumerate(scores)]
    found = measure(rows)
    assert [(each.k, each.tasks, each.short) for each in found.pass_k] == [(1, 1, 1), (2, 1, 1), (3, 1, 1)]
    assert (found.tasks, found.tasks_without_score) == (2, 1)
    # 2 of 3 trials succeed: pairs of trials are (1,1), (1,0), (1,0)
    assert found.pass_k[1].at == 1.0
    assert found.pass_k[1].hat == pytest.approx(1 / 3)


def test_bounds_are_the_means_if_all_lost_episodes_had_failed_or_succeeded() -> None:
    found = measure([row("a", 1.0), row("b", 0.5), row("c", None), row("d", None)])
    assert found.overall.bounds == Bounds(low=1 / 4, high=3 / 4)
    assert found.score_bounds == Bounds(low=1.5 / 4, high=3.5 / 4)
    assert found.overall.coverage_share == 0.5
    whole = measure([row("a", 1.0), row("b", 0.0)]).overall
    assert (whole.bounds, whole.coverage_share) == (Bounds(low=0.5, high=0.5), 1.0)
    assert (measure([]).overall.bounds, measure([]).score_bounds) == (None, None)
    assert measure([row("a", None)]).overall.bounds == Bounds(low=0.0, high=1.0)


def test_bounds_hold_whatever_the_lost_episodes_would_have_scored() -> None:
    """200 complete runs lose episodes, at random or because they failed: the success without loss is in the bounds."""
    draw = np.random.default_rng(0)
    for _ in range(200):
        whole = draw.random(30) < draw.random()
        lost = draw.random(30) < np.where(whole, 0.1, 0.6)
        bounds = measure([row(str(n), None if lost[n] else float(whole[n])) for n in range(30)]).overall.bounds
        assert bounds is not None
        assert bounds.low <= whole.mean() + 1e-12
        assert whole.mean() <= bounds.high + 1e-12


def test_retried_episodes_are_measured_beside_the_others() -> None:
    first = [row(f"f{n}", float(n < 8)) for n in range(10)]
    again = [row(f"r{n}", float(n < 1), attempt=1) for n in range(4)]
    replaced = [row(f"r{n}", None, latest=False, outcome=Outcome.TIMEOUT) for n in range(4)]
    still_lost = row("x", None, attempt=2, outcome=Outcome.TIMEOUT)
    retries = measure([*first, *again, *replaced, still_lost]).retries
    assert retries is not None
    assert (retries.first.success, retries.first.episodes) == (0.8, 10)
    assert (retries.retried.success, retries.retried.coverage) == (0.25, "4/5 scored, 1 infra")
    assert retries.difference == pytest.approx(-0.55)
    # tables with 9 successes among 10 + 4: C(10, k) C(4, 9 - k) / C(14, 9); k = 8 and 9 are at most as likely as k = 8
    assert retries.p == pytest.approx((45 * 4 + 10 * 1) / 2002)
    assert measure(first).retries is None
    assert measure([row("a", 1.0), row("b", None, attempt=1)]).retries is not None


def test_a_partial_score_is_no_success() -> None:
    summary = measure([row("a", 0.99, trial=0), row("a", 1.0, trial=1)])
    assert summary.overall.success == 0.5
    assert summary.score.value == pytest.approx(0.995)
    assert summary.pass_k[1] == PassK(k=2, at=1.0, hat=0.0, tasks=1, fewest=2, most=2)


def test_elapsed_time_is_the_union_of_the_episodes_spans() -> None:
    spans = [(100.0, 2.0), (101.0, 3.0), (200.0, 1.0)]  # two side by side, then one after a pause
    rows = [row(f"t{i}", 1.0, usage=Usage(started_at=at, wall_s=wall)) for i, (at, wall) in enumerate(spans)]
    assert (measure(rows).wall_s, measure(rows).episode_s) == (5.0, 6.0)


def test_elapsed_time_includes_all_attempts_at_an_episode() -> None:
    first = row("a", None, outcome=Outcome.TIMEOUT, latest=False, usage=Usage(started_at=100.0, wall_s=60.0))
    again = row("a", 1.0, usage=Usage(started_at=161.0, wall_s=2.0))
    found = measure([first, again])
    assert (found.overall.episodes, found.attempts, found.wall_s, found.episode_s) == (1, 2, 62.0, 62.0)


def test_the_cost_of_lost_attempts_is_counted() -> None:
    use = {"calls": 2.0, "errors": 1.0, "seconds": 0.5, "cost": 0.25}
    model = {"requests": 1.0, "prompt_tokens": 10.0, "completion_tokens": 5.0, "cost": 1.0}
    usage = Usage(prompt_tokens=10, completion_tokens=5, cost=1.25, tools={"pay": use}, models={"m": model})
    lost = row("a", None, usage=usage, latest=False, outcome=Outcome.POLICY_INFRA)
    spent = measure([lost, row("a", 1.0, usage=usage, trial=1)]).spent
    assert spent == Spending(
        prompt_tokens=20,
        completion_tokens=10,
        cost=2.5,
        tools={"pay": {name: 2 * value for name, value in use.items()}},
        models={"m": {name: 2 * value for name, value in model.items()}},
    )


def test_time_is_split_by_kind_with_the_mean_number_of_requests() -> None:
    usage = Usage(started_at=100.0, wall_s=10.0, reset_s=1.0, agent_s=5.0, tool_s=2.0, grading_s=0.5)
    lost = Usage(started_at=105.0, wall_s=10.0, agent_s=10.0)
    times = measure([row("a", 1.0, usage=usage), row("b", None, outcome=Outcome.POLICY_INFRA, usage=lost)]).times
    assert times.seconds == {"policy": 15.0, "tool": 2.0, "reset": 1.0, "grading": 0.5, "harness": 1.5}
    assert times.share == {"policy": 0.75, "tool": 0.1, "reset": 0.05, "grading": 0.025, "harness": 0.075}
    assert (times.policy_requests, times.tool_calls) == (1.0, 2.0 / 15.0)


def test_a_run_without_episodes_used_no_time() -> None:
    times = measure([]).times
    assert set(times.share.values()) == {0.0}
    assert (times.policy_requests, times.tool_calls) == (None, None)
