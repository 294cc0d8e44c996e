"""Curves of registered comparisons that the package ships: written when all ranked runs have ended, read, and drawn."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from comparisons.packaging import collect_curves, package_curves
from comparisons.registration import Registration, read_registration, read_registrations
from comparisons.results import RunResult, read_results
from credit import RESULTS
from registered import ENDS, TEXT, make_result, make_whole, write_registration

from gymcp.cli.demo.parts import CURVE_FILE, RECIPE, write_curve_page
from gymcp.errors import ConfigError
from gymcp.evaluators.report.registered.curves_file import (
    RegisteredCurves,
    read_registered_curves,
    write_registered_curves,
)
from gymcp.evaluators.report.registered.curves_page import describe_ground, render_curves
from gymcp.evaluators.report.training_data import spread_over
from gymcp.evaluators.training_curves import read_held_out
from gymcp.trainers.recipe.load import load_recipe

ROWS = [
    {"iteration": 0, "test/seeds/success": 0.125},
    {"iteration": 1, "success": 0.25},
    {"iteration": 2, "test/seeds/success": 0.875, "success": 0.5},
]
OWN = {
    "env": "rounds",
    "seed": 0,
    "tasks": {"levels": [3]},
    "credit": {"preset": "gigpo"},
    "learn": {"iterations": 2, "learning_rate": 0.5},
}


@pytest.fixture
def registration(tmp_path: Path) -> Registration:
    return write_registration(tmp_path)


@pytest.fixture
def whole(registration: Registration) -> dict[tuple[str, int], RunResult]:
    return make_whole(registration)


@pytest.fixture
def curves(registration: Registration, whole: dict[tuple[str, int], RunResult], tmp_path: Path) -> RegisteredCurves:
    found = collect_curves(registration, whole, tmp_path)
    assert found is not None
    return found


def test_the_file_comes_back_as_it_was_written_and_holds_ranked_arms_only(
    registration: Registration, whole: dict[tuple[str, int], RunResult], curves: RegisteredCurves, tmp_path: Path
) -> None:
    whole["world", 1] = make_result(registration, "world", 1, [0.15, 0.3, 0.4])
    path = package_curves(registration, whole, tmp_path, tmp_path)
    assert path == tmp_path / "small-1.json"
    assert read_registered_curves(tmp_path) == (curves,)
    assert [(arm.name, arm.rate) for arm in curves.arms] == [("grpo", 2e-3), ("gigpo", 2e-3)]
    assert curves.arms[1].success[2] == pytest.approx({0: 0.15, 8: 0.62, 16: 0.82})
    assert (curves.verdict, curves.claims) == ("met", {"gigpo is 10 points over grpo": "met"})
    assert curves.recipe["rollout"]["groups"] == 4
    assert curves.recipe["evaluation"]["tasks"] == 40  # set by the registration
    assert not {"name", "seed", "credit"} & curves.recipe.keys()


def test_nothing_is_written_before_every_ranked_run_has_ended(
    registration: Registration, whole: dict[tuple[str, int], RunResult], tmp_path: Path
) -> None:
    half = make_result(registration, "grpo", 2, [0.15, 0.4])
    failed = make_result(registration, "grpo", 2, [0.15, 0.4, 0.5], reason="")
    for results in ({}, {key: run for key, run in whole.items() if key != ("gigpo", 3)}, {**whole, ("grpo", 2): half},
                    {**whole, ("grpo", 2): failed}):  # fmt: skip
        assert package_curves(registration, results, tmp_path, tmp_path) is None
    assert not list(tmp_path.glob("*.json"))


def test_a_run_that_ended_early_is_drawn_as_far_as_it_went(
    registration: Registration, whole: dict[tuple[str, int], RunResult], tmp_path: Path
) -> None:
    whole["gigpo", 3] = make_result(registration, "gigpo", 3, [0.15, 0.3], reason="the policy collapsed")
    found = collect_curves(registration, whole, tmp_path)
    assert found is not None
    assert found.arms[1].success[3] == {0: 0.15, 8: 0.3}


def test_the_demo_shows_its_own_ground_only(tmp_path: Path) -> None:
    registration = write_registration(tmp_path, TEXT)
    (tmp_path / "small.toml").write_text('env = "looks"\n[learn]\niterations = 16\n')
    other = read_registration(tmp_path / "registrations" / "small-1.toml", tmp_path)
    whole = {
        (arm, seed): make_result(other, arm, seed, [0.1, 0.2, end])
        for arm, of in ENDS.items()
        for seed, end in of.items()
    }
    assert registration.digest != other.digest
    assert package_curves(other, whole, tmp_path, tmp_path) is None


def test_a_comparison_that_runs_only_if_it_is_named_is_no_curve_of_the_demo(
    registration: Registration, whole: dict[tuple[str, int], RunResult], tmp_path: Path
) -> None:
    assert package_curves(replace(registration, by_default=False), whole, tmp_path, tmp_path) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seeds": [1, 2]}, r"arm 'grpo': its seeds are 1, 2, 3, not 1, 2"),
        ({"seeds": [True]}, r"'seeds' must be whole numbers"),
        ({"title": 3}, r"'title' must be a text"),
        ({"recipe": []}, r"'recipe' must be a table"),
        ({"claims": {"it pays": 1}}, r"'claims' must be texts"),
        ({"baseline": "ppo"}, r"no arm 'ppo', its baseline"),
        ({"registration": "small-2"}, r"it holds 'small-2'"),
        ({"arms": [{"name": "grpo", "label": "", "rate": "high", "success": {}}]}, r"'rate' must be a number"),
        (
            {"arms": [{"name": "grpo", "label": "", "rate": 0.1, "success": {"1": {"0": 2.0}, "2": {}, "3": {}}}]},
            r"arm 'grpo': success must be shares by iteration",
        ),
    ],
)
def test_a_broken_file_is_an_error_that_names_it_and_what_is_wrong(
    curves: RegisteredCurves, change: dict[str, object], said: str, tmp_path: Path
) -> None:
    path = write_registered_curves(curves, tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=rf"small-1\.json: cannot be read: {said}; python benchmarks/credit\.py"):
        read_registered_curves(tmp_path)


def test_a_file_that_is_cut_is_an_error(curves: RegisteredCurves, tmp_path: Path) -> None:
    path = write_registered_curves(curves, tmp_path)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ConfigError, match=r"small-1\.json: cannot be read: "):
        read_registered_curves(tmp_path)


def test_the_page_says_of_each_curve_whose_it_is(curves: RegisteredCurves) -> None:
    page = render_curves("The demo's training", OWN, ROWS, read_held_out(ROWS), [curves])
    own, measured = page.split("Registered comparison small-1: Small")
    assert "The demo&#x27;s training: one run, practised just now" in own
    assert "Credit by gigpo, seed 0; environment rounds, level 3; 2 iterations" in own
    assert own.count('<svg class="chart"') == measured.count('<svg class="chart"') == 1
    assert "Seeds 1, 2, 3; environment rounds, level all; 16 iterations of 4 tasks with 2 episodes each" in measured
    assert measured.count("<polyline") == 2 * (3 + 1)  # three seeds and their mean, of each arm
    assert measured.count("<polygon") == 2
    # 0.70, 0.82, 0.88 less 0.50, 0.60, 0.70: the t of two degrees of freedom, 4.303, times 2 points over the root of 3
    assert ">+20.0<" in measured
    assert ">+15.0 to +25.0<" in measured
    assert "gigpo is 10 points over grpo: <b>met</b>" in measured
    assert "learn.iterations" in measured.split("Where the recipes differ")[1]
    assert ">learn.learning_rate<" not in measured


def test_the_ground_names_the_tasks_of_the_last_evaluation() -> None:
    recipe = {**OWN, "rollout": {"groups": 16, "episodes": 8}, "evaluation": {"tasks": 96, "final_tasks": 400}}
    assert describe_ground(recipe) == (
        "environment rounds, level 3; 2 iterations of 16 tasks with 8 episodes each; 400 held-out tasks at the end"
    )


def test_the_demo_draws_a_page_if_a_comparison_was_measured(curves: RegisteredCurves, tmp_path: Path) -> None:
    run, page = tmp_path / "train", tmp_path / CURVE_FILE
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (run / "training.json").write_text(json.dumps({"recipe": asdict(load_recipe(RECIPE))}))
    assert write_curve_page(run, read_registered_curves(tmp_path), page) == {}
    assert not page.exists()
    write_registered_curves(replace(curves, title="Step credit"), tmp_path)
    named = write_curve_page(run, read_registered_curves(tmp_path), page)
    assert named == {page: "this curve beside those of the registered comparison small-1 (3 seeds)"}
    assert "Registered comparison small-1: Step credit" in page.read_text()
    assert "1024" in page.read_text()  # demonstrations of the demo's recipe, beside those of the comparison


def test_the_package_ships_exactly_the_comparisons_of_its_demo_that_have_ended() -> None:
    ended = [
        collect_curves(each, read_results(each, RESULTS / each.name))
        for each in read_registrations()
        if each.by_default
    ]
    env = load_recipe(RECIPE).env
    shipped = read_registered_curves()
    assert {each.registration: each for each in shipped} == {
        each.registration: each for each in ended if each and each.recipe["env"] == env
    }
    assert [each.registration for each in shipped] == sorted((each.registration for each in shipped), reverse=True)


def test_bands_hold_the_iterations_that_all_seeds_have() -> None:
    spread = spread_over([{0: 0.25, 8: 0.5, 16: 0.9}, {0: 0.75, 8: 0.5}])
    assert [(each.iteration, each.mean, each.low, each.high) for each in spread] == [
        (0, 0.5, 0.25, 0.75),
        (8, 0.5, 0.5, 0.5),
    ]
    assert spread_over([]) == ()
