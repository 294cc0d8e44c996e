"""Comparison of runs: ranked if the data allow it, else not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gymcp.errors import ConfigError
from gymcp.evaluators.compare import Contender, compare
from gymcp.evaluators.metrics import Bounds
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow
from gymcp.types import Json, Usage

SUITE = {"env": "shop", "env_version": "0", "suite": "shop", "suite_version": "1", "suite_digest": "ab"}


def run(name: str, successes: Sequence[Sequence[float | None]], config: Json = SUITE, **fields: Json) -> Contender:
    rows = [
        EpisodeRow(
            id=f"{name}/{task}/{trial}",
            env="shop",
            task=f"t{task}",
            trial=trial,
            score=score,
            outcome=Outcome.SCORED if score is not None else Outcome.ENV_INFRA,
            **fields,
        )
        for task, of_task in enumerate(successes)
        for trial, score in enumerate(of_task)
    ]
    return Contender(name=name, config=config, rows=rows)


WEAK = run("weak", [[float(n < 10)] for n in range(40)])
STRONG = run("strong", [[float(n < 30)] for n in range(40)])
NEARLY = run("nearly", [[float(n < 29)] for n in range(40)])


def test_a_better_run_is_named_with_the_interval_of_the_difference() -> None:
    found = compare([WEAK, STRONG])
    (pair,) = found.pairs
    assert (pair.better, pair.paired.difference, pair.paired.better, pair.paired.worse) == ("strong", 0.5, 20, 0)
    assert pair.words.startswith("strong is better than weak by 50.0 points, 95 % interval 33.8 to 66.2 points")
    assert found.verdict == "strong is the best in success."
    assert compare([STRONG, WEAK]).pairs[0].better == "strong"


def test_seconds_of_the_agent_and_of_the_tools_are_compared_apart() -> None:
    slow = run("slow model", [[1.0]] * 20, usage=Usage(agent_s=3.0, tool_s=1.0))
    fast = run("slow tools", [[1.0]] * 20, usage=Usage(agent_s=1.0, tool_s=3.0))
    means = {
        metric: [standing.mean.value for standing in compare([slow, fast], metric=metric).standings]
        for metric in ("agent_seconds", "tool_seconds", "seconds")
    }
    assert means == {"agent_seconds": [3.0, 1.0], "tool_seconds": [1.0, 3.0], "seconds": [4.0, 4.0]}


def test_runs_within_the_noise_are_not_ranked() -> None:
    found = compare([STRONG, NEARLY])
    assert found.pairs[0].better is None
    assert found.pairs[0].words == (
        "strong and nearly cannot be told apart: they differ by 2.5 points, 95 % interval -2.6 to 7.6 points;"
        " chance alone makes such a difference in 100 % of cases."
    )
    assert found.verdict == ("No run can be put before another in success: what they differ by is within the noise.")


def test_a_statement_on_few_shared_tasks_says_so() -> None:
    few = run("few", [[]] * 36 + [[0.0]] * 8)
    found = compare([run("all", [[1.0]] * 40), few])
    assert found.pairs[0].words.startswith(
        "all and few cannot be told apart: they differ by 100.0 points on the 4 tasks that both have, 95 % interval"
    )


def test_the_verdict_leaves_out_reference_agents() -> None:
    gates = [
        run("oracle", [[1.0]] * 40, {**SUITE, "agent": "oracle"}),
        run("mutated", [[]] * 36 + [[0.0]] * 4, {**SUITE, "agent": "mutated"}),
    ]
    assert compare([*gates, WEAK, STRONG]).verdict.startswith("strong is better than weak by 50.0 points, 95 %")
    assert compare([*gates, WEAK, STRONG, NEARLY]).verdict.startswith("In success, strong and nearly cannot be told")
    assert compare([*gates, WEAK]).verdict == (
        "In success, oracle and mutated cannot be told apart on the 4 tasks that they share; they are not beaten by any"
        " other."
    )


def test_an_unbeaten_run_need_not_beat_all_others() -> None:
    first = run("first", [[1.0]] * 40)
    middle = run("middle", [[0.0]] * 40 + [[1.0]] * 40)
    last = run("last", [[]] * 38 + [[0.0]] * 42)
    assert compare([first, middle, last]).verdict == (
        "In success, first is not beaten by any other, but not to be told apart from last."
    )


def test_two_of_three_runs_may_share_the_first_place() -> None:
    found = compare([WEAK, STRONG, NEARLY])
    assert [pair.better for pair in found.pairs] == ["strong", "nearly", None]
    assert found.verdict == "In success, strong and nearly cannot be told apart; they are not beaten by any other."


def test_a_difference_below_the_noise_floor_is_not_ranked_however_small_p_is() -> None:
    # on every task b is better by a tenth; but trials of one and the same policy differ by so much more
    a = run("a", [[0.0, 1.0]] * 60)
    b = run("b", [[0.0, 1.0, 0.0, 1.0, 1.0]] * 60)
    (pair,) = compare([a, b]).pairs
    assert pair.p_holm is not None
    assert pair.p_holm < 0.001
    assert (round(pair.paired.difference or 0, 3), round(pair.noise_floor or 0, 3)) == (0.1, 0.134)
    assert pair.better is None
    assert pair.words.endswith("two runs of one policy differ by up to 13.4 points by themselves.")


def test_many_pairs_are_corrected_for() -> None:
    draw = np.random.default_rng(2)
    runs = [run(f"r{n}", draw.binomial(1, 0.5, (60, 1)).astype(float).tolist()) for n in range(8)]
    found = compare(runs)
    assert len(found.pairs) == 28
    uncorrected = [pair for pair in found.pairs if (pair.paired.p_permutation or 1.0) < 0.05]
    assert uncorrected  # some of the 28 pairs of equals look different
    assert [pair for pair in found.pairs if pair.better] == []


def test_a_run_with_other_tasks_is_listed_but_not_ranked() -> None:
    other = run("other", [[1.0]] * 40, {**SUITE, "suite_version": "2"})
    found = compare([WEAK, other, STRONG])
    assert [each.comparable for each in found.standings] == [True, False, True]
    assert found.standings[1].mean.value == 1.0
    assert found.problems == (
        "other: suite_version is 2, of weak it is 1: the tasks are others, so the two are not compared",
    )
    assert [(pair.a, pair.b) for pair in found.pairs] == [("weak", "strong")]


def test_a_run_without_a_score_is_listed_and_the_others_are_compared() -> None:
    lost = run("lost", [[None]] * 3)
    found = compare([lost, WEAK, STRONG])
    assert found.problems == ("lost: has no score",)
    assert found.standings[0].coverage == "0/3 scored, 3 infra"
    assert found.pairs[0].better == "strong"
    assert compare([lost, WEAK]).verdict == "There are no two runs that can be compared."


def test_a_run_below_the_coverage_floor_is_listed_with_its_bounds_but_not_ranked() -> None:
    sparse = run("sparse", [[1.0]] * 36 + [[None]] * 4)
    found = compare([WEAK, sparse, STRONG])
    assert [each.comparable for each in found.standings] == [True, False, True]
    assert found.standings[1].bounds == Bounds(low=0.9, high=1.0)
    assert [(pair.a, pair.b) for pair in found.pairs] == [("weak", "strong")]
    assert found.problems == (
        "sparse: 36 of 40 episodes (90 %) have a score, below the floor of 95 %: over all episodes, success is between"
        " 90 % (all lost ones failed) and 100 % (all succeeded); to score the lost ones: repeat its command with --out"
        " sparse --resume; to accept this coverage: --min-coverage 0.9",
    )
    assert compare([WEAK, sparse]).verdict == "No ranking: too few episodes have a score in sparse."
    assert compare([WEAK, sparse], min_coverage=0.9).pairs[0].better == "sparse"


def test_the_floor_of_a_runs_own_config_holds_unless_another_is_asked_for() -> None:
    loose = run("loose", [[1.0]] * 36 + [[None]] * 4, {**SUITE, "min_coverage": 0.5})
    assert compare([WEAK, loose]).problems == ()
    assert len(compare([WEAK, loose], min_coverage=0.95).problems) == 1
    broken = run("broken", [[1.0]] * 36 + [[None]] * 4, {**SUITE, "min_coverage": "none"})
    assert len(compare([WEAK, broken]).problems) == 1


def test_a_run_at_the_floor_is_ranked() -> None:
    at_floor = run("at floor", [[1.0]] * 38 + [[None]] * 2)
    assert compare([WEAK, at_floor]).pairs[0].better == "at floor"


def test_the_advice_depends_on_the_kind_of_loss() -> None:
    rows = [
        EpisodeRow(id=f"e{n}", env="shop", task=f"t{n}", score=None if n < 5 else 1.0, outcome=outcome)
        for n, outcome in enumerate([Outcome.GRADER_ERROR] * 5 + [Outcome.SCORED] * 15)
    ]
    ungraded = Contender(name="ungraded", config=SUITE, rows=rows, folder="runs/my run")
    assert "to score the lost ones: gymcp grade 'runs/my run'; to accept" in compare([WEAK, ungraded]).problems[0]


def test_bounds_of_cost_are_not_known() -> None:
    assert compare([WEAK, STRONG], metric="cost").standings[0].bounds is None


def test_runs_are_compared_on_the_tasks_they_share() -> None:
    few = run("few", [[1.0]] * 5)
    assert compare([WEAK, few]).pairs[0].paired.tasks == 5
    apart = Contender(name="apart", config=SUITE, rows=[EpisodeRow(id="x", env="shop", task="x", score=1.0)])
    assert compare([WEAK, apart]).problems == ("apart: has a score of no task that weak has one of",)


def test_less_is_better_for_metrics_of_cost() -> None:
    cheap = run("cheap", [[1.0]] * 20, usage=Usage(cost=1.0))
    dear = Contender(
        name="dear",
        config=SUITE,
        rows=[
            EpisodeRow(id=f"d{n}", env="shop", task=f"t{n}", score=1.0, usage=Usage(cost=2.0 + n / 100))
            for n in range(20)
        ],
    )
    found = compare([dear, cheap], metric="cost")
    assert found.pairs[0].better == "cheap"
    assert found.pairs[0].words.startswith("cheap takes less than dear by 1.095, 95 % interval 1.067 to 1.123")


def test_components_from_graders_can_be_compared() -> None:
    a = run("a", [[0.0]] * 20, components={"milestones": 0.2})
    b = run("b", [[0.0]] * 20, components={"milestones": 0.9})
    assert compare([a, b], metric="milestones").pairs[0].better == "b"
    counted = run("c", [[0.0]] * 20, components={"milestones": 3.0})
    with pytest.raises(ConfigError, match="component 'milestones' is no share: 3 is among its values"):
        compare([a, counted], metric="milestones")


def test_power_says_how_many_trials_would_do() -> None:
    draw = np.random.default_rng(0)
    a, b = (run(name, draw.binomial(1, 0.5, (50, 2)).astype(float).tolist()) for name in "ab")
    power = compare([a, b], resolution=0.1).pairs[0].power
    assert power is not None
    assert power.trials is not None
    assert power.trials > 2
    assert compare([WEAK, STRONG]).pairs[0].power is None
    sure = [run(name, [[1.0, 1.0]] * 10) for name in "ab"]
    assert compare(sure).pairs[0].power is None


@pytest.mark.parametrize(
    ("contenders", "metric", "why"),
    [
        ([WEAK], "success", "it takes two or more"),
        ([WEAK, WEAK], "success", "two runs are called 'weak'"),
        ([WEAK, STRONG], "beauty", "no metric 'beauty'; these runs have success, score"),
    ],
)
def test_invalid_comparisons_are_refused(contenders: list[Contender], metric: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        compare(contenders, metric=metric)
