"""The table of methods: who is in it, on how many seeds, which claims show, and what is ranked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from comparisons.methods import choose_seeds, find_tables, has_collapsed, judge_paper, plan_methods, rank_pairs
from comparisons.methods_page import Ground, draw_methods, write_methods_page
from comparisons.packaging import collect_curves
from comparisons.registration import Registration, read_registrations
from comparisons.results import RunResult, write_result
from comparisons.runs import Bench, Progress, run_jobs
from comparisons.tuning import choose_rate
from comparisons.verdicts import estimate_figure
from methods import choose_methods, is_before
from PIL import Image
from registered import make_result, write_registration

from gymcp.errors import ConfigError
from gymcp.trainers.credit.presets import PRESETS

RATES = dict.fromkeys(("grpo", "gigpo", "otc", "rloo"), 2e-3)
TEXT = """
recipe = "small"
title = "Small"
tuning_seed = 9
seeds = [1, 2, 3, 4, 5]
shown_seeds = 3
near_best = 0.05
baseline = "grpo"
figures = ["start", "success"]
expected_start = [0.1, 0.2]
tuned_by = { success = 1.0 }
left_out = { hiper = "no tags here" }
[arms.grpo]
credit = { preset = "grpo" }
ranked = true
rates = [1e-3, 2e-3, 4e-3]
paper = { says = "the baseline", direction = "none" }
[arms.gigpo]
credit = { preset = "gigpo" }
rates = [1e-3, 2e-3, 4e-3]
paper = { says = "better than grpo", direction = "higher" }
[arms.otc]
credit = { preset = "otc" }
rates = [1e-3, 2e-3, 4e-3]
paper = { says = "less than gigpo", direction = "lower", over = "gigpo" }
[arms.rloo]
credit = { preset = "rloo" }
rates = [1e-3, 2e-3, 4e-3]
paper = { says = "better than grpo", direction = "higher" }
"""
ENDS = {"grpo": (0.50, 0.52, 0.54), "gigpo": (0.80, 0.83, 0.84), "otc": (0.79, 0.78, 0.83)}
"""Success at the end on the first seeds: gigpo is 30, 31 and 30 points over grpo; otc 1, 5 and 1 below gigpo."""


@pytest.fixture
def registration(tmp_path: Path) -> Registration:
    return write_registration(tmp_path, TEXT)


def make_ends(
    registration: Registration, ends: Mapping[str, Sequence[float]] = ENDS
) -> dict[tuple[str, int], RunResult]:
    return {
        (arm, seed): make_result(registration, arm, seed, [0.15, 0.3, end])
        for arm, row in ends.items()
        for seed, end in enumerate(row, 1)
    }


def test_every_preset_has_a_row_or_a_reason_why_not() -> None:
    tables = find_tables(read_registrations())
    rows = {str(arm.credit["preset"]) for each in tables for arm in each.arms}
    left_out = {name for each in tables for name in each.left_out}
    assert rows | left_out == PRESETS.keys()
    assert not rows & left_out
    for each in tables:
        assert not each.by_default
        assert each.tuning_seeds in ((100,), (100, 101, 102))
        assert (each.shown_seeds, len(each.seeds), each.near_best) == (3, 5, 0.05)
        assert all(arm.paper is not None for arm in each.arms)


def test_an_arm_near_the_best_is_measured_on_all_seeds(registration: Registration, tmp_path: Path) -> None:
    arms = {arm.name: arm for arm in registration.arms}
    results = make_ends(registration)
    seeds = {name: choose_seeds(registration, results, arm) for name, arm in arms.items()}
    assert seeds == {"grpo": (1, 2, 3), "gigpo": (1, 2, 3, 4, 5), "otc": (1, 2, 3, 4, 5), "rloo": (1, 2, 3)}
    bench = Bench(registration=registration, runs=tmp_path / "runs", results=tmp_path / "results")
    for (arm, seed), result in results.items():
        write_result(bench.results / f"{arm}-{seed}.json", result)
    planned = [job.name for job in plan_methods(bench, RATES, [arms["rloo"], arms["otc"]])]
    assert planned == ["rloo-1", "otc-1", "rloo-2", "otc-2", "rloo-3", "otc-3", "otc-4", "otc-5"]


def test_a_claim_shows_only_if_its_interval_is_on_the_claimed_side(registration: Registration) -> None:
    results = make_ends(registration)
    arms = {arm.name: arm for arm in registration.arms}
    answers = {name: judge_paper(registration, results, arm)[0] for name, arm in arms.items()}
    assert answers == {"grpo": "", "gigpo": "shows", "otc": "does not show", "rloo": "not measured yet"}
    worse = make_ends(registration, {**ENDS, "gigpo": (0.20, 0.23, 0.24)})
    assert judge_paper(registration, worse, arms["gigpo"])[0] == "the opposite shows"
    del results["gigpo", 3]
    assert judge_paper(registration, results, arms["gigpo"])[0] == "not measured yet"


def test_only_differences_that_chance_does_not_explain_are_ranked(registration: Registration) -> None:
    """Both over grpo, with p = .0001 and .0013 uncorrected; otc and gigpo are not told apart."""
    pairs = rank_pairs(registration, make_ends(registration))
    assert [(pair.better.name, pair.worse.name) for pair in pairs] == [("gigpo", "grpo"), ("otc", "grpo")]
    assert pairs[0].gain.mean == pytest.approx(0.91 / 3)
    assert pairs[0].p < 0.001 < pairs[1].p < 0.05
    two = {key: result for key, result in make_ends(registration).items() if key[1] < 3}
    assert rank_pairs(registration, two) == []


def test_an_interval_holds_no_success_above_one_and_none_below_zero(registration: Registration) -> None:
    found = [
        estimate_figure(registration, make_ends(registration, {"grpo": ends}), registration.arm("grpo"), "success")
        for ends in ((0.5, 0.9, 1.0), (0.5, 0.1, 0.0))
    ]
    bounds = [one.ci95 for one in found if one is not None and one.ci95 is not None]
    assert [(bound.low > 0.0, bound.high) for bound in bounds[:1]] == [(True, 1.0)]
    assert [(bound.low, bound.high < 1.0) for bound in bounds[1:]] == [(0.0, True)]


def test_a_policy_that_fell_below_half_has_collapsed(registration: Registration) -> None:
    fell = make_result(registration, "grpo", 1, [0.15, 0.07])
    early = make_result(registration, "grpo", 1, [0.15, 0.2], reason="entropy below 0.01")
    assert [has_collapsed(run) for run in (fell, early)] == [True, True]
    assert not has_collapsed(make_result(registration, "grpo", 1, [0.15, 0.08]))


def test_the_page_says_what_is_measured_what_shows_and_why_not(registration: Registration) -> None:
    results = make_ends(registration)
    results["rloo", 1] = make_result(registration, "rloo", 1, [0.15, 0.05, 0.02])
    reasons = {registration.name: {"otc": "calls are equal here"}}
    page = write_methods_page([Ground(registration=registration, results=results)], reasons)
    assert "3 of 4 rows are measured." in page
    assert "| rloo | 1 | 0.002 |  | 15.0 % | 2.0 % | **1 collapsed**; not measured yet: 1 of 3 seeds |" in page
    assert (
        "| gigpo | better than grpo | grpo: success at the end, higher | +30.3 points (28.9 to 31.8) | **shows** |"
        in page
    )
    assert "**does not show**: calls are equal here; on 3 seeds only a difference above" in page
    assert "| gigpo | 3 | 0.002 | 82.3 % |" in page  # the first three seeds
    assert "- gigpo above grpo: +30.3 points" in page
    assert "| hiper | no tags here |" in page
    nothing = write_methods_page([Ground(registration=registration, results={})], {})
    assert "0 of 4 rows are measured." in nothing
    assert nothing.count("| not measured yet |") == 8  # figures and claims of four rows
    assert "No two methods are ranked" in nothing
    assert "<picture>" not in nothing


def test_all_methods_are_one_picture_for_light_and_dark_pages(registration: Registration, tmp_path: Path) -> None:
    grounds = [Ground(registration=registration, results=make_ends(registration))] * 2
    shades = []
    for path in draw_methods(grounds, tmp_path):
        with Image.open(path) as picture:
            histogram = picture.convert("L").histogram()
        shades.append(sum(value * count for value, count in enumerate(histogram)) / sum(histogram))
    assert shades[0] > 200
    assert shades[1] < 60


def test_no_run_starts_after_the_deadline(registration: Registration, tmp_path: Path) -> None:
    bench = Bench(registration=registration, runs=tmp_path / "runs", results=tmp_path / "results")
    jobs = plan_methods(bench, RATES, registration.arms)
    assert len(jobs) == 12
    run_jobs(bench, jobs, Progress(bench, jobs), retry=False, may_start=lambda: is_before(0.0))
    assert not bench.results.exists()
    assert is_before(float("inf"))


def test_methods_are_chosen_by_name_on_every_ground(registration: Registration, tmp_path: Path) -> None:
    bench = Bench(registration=registration, runs=tmp_path, results=tmp_path)
    few = replace(bench, registration=replace(registration, arms=registration.arms[:1]))
    chosen = choose_methods([bench, few], ["grpo", "otc"])
    assert [[arm.name for arm in arms] for _, arms in chosen] == [["grpo", "otc"], ["grpo"]]
    assert [len(arms) for _, arms in choose_methods([bench, few], [])] == [4, 1]
    assert choose_methods([few, bench], ["rloo"])[0][0] is bench
    with pytest.raises(ConfigError, match="no method 'luck'; have grpo, gigpo, otc, rloo"):
        choose_methods([bench, few], ["luck"])


def test_a_ground_may_take_the_end_of_a_grid_and_claims_nothing_by_itself(registration: Registration) -> None:
    assert choose_rate({1e-3: 0.5, 2e-3: 0.6, 4e-3: 0.7}, "arm", accepts_ends=True) == 4e-3
    assert registration.claims == ()
    assert collect_curves(registration, make_ends(registration, dict.fromkeys(("grpo",), (0.5,) * 5))) is None


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('direction = "lower"', 'direction = "less"', "direction is 'less'; have 'higher', 'lower', 'none'"),
        ('over = "gigpo"', 'over = "ppo"', "no arm 'ppo'; have grpo, gigpo, otc, rloo"),
        ('over = "gigpo"', 'figure = "luck"', "no figure 'luck'; have start"),
        ("paper = {", "papers = {", "'claims' must be one or more sections"),
    ],
)
def test_an_invalid_claim_of_a_paper_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in TEXT
    with pytest.raises(ConfigError, match="registration 'small-1'") as raised:
        write_registration(tmp_path, TEXT.replace(old, new))
    assert says in str(raised.value)
