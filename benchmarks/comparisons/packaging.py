"""Curves of a finished comparison, as the file that the package ships."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from comparisons.figures import evaluations
from comparisons.registration import RECIPES, Registration, load_arm_recipe
from comparisons.verdicts import Results, judge_all, judge_claim
from gymcp.cli.demo.parts import RECIPE
from gymcp.evaluators.report.registered.curves_file import (
    PACKAGED,
    RegisteredArm,
    RegisteredCurves,
    write_registered_curves,
)
from gymcp.trainers.recipe.load import load_recipe

ENDED = ("finished", "ended early")


def package_curves(
    registration: Registration, results: Results, folder: Path = PACKAGED, recipes: Path = RECIPES
) -> Path | None:
    """Write the curves of a comparison on the ground of the demo.

    None if it is on another, if it runs only when it is named, or if a ranked run is open.
    """
    curves = collect_curves(registration, results, recipes) if registration.by_default else None
    if curves is None or curves.recipe["env"] != load_recipe(RECIPE).env:
        return None
    return write_registered_curves(curves, folder)


def collect_curves(registration: Registration, results: Results, recipes: Path = RECIPES) -> RegisteredCurves | None:
    """Curves of the ranked arms; None unless something is claimed of them, and every run of them has ended with two
    evaluations or more."""
    if not registration.claims:
        return None
    arms = []
    for arm in (each for each in registration.arms if each.ranked):
        found = {seed: results.get((arm.name, seed)) for seed in registration.seeds}
        runs = {seed: run for seed, run in found.items() if run and run.state_in(registration) in ENDED}
        lines = {seed: dict(evaluations(run.rows, "success")) for seed, run in runs.items()}
        if len(lines) < len(found) or any(len(line) < 2 for line in lines.values()):
            return None
        rate = runs[registration.seeds[0]].rate
        arms.append(RegisteredArm(name=arm.name, label=arm.label, rate=rate, success=lines))
    findings = [judge_claim(registration, results, claim) for claim in registration.claims]
    recipe = load_arm_recipe(registration, None, registration.seeds[0], recipes=recipes)
    shared = json.loads(json.dumps(asdict(recipe)))
    return RegisteredCurves(
        registration=registration.name,
        digest=registration.digest,
        recipe_digest=registration.recipe_digest,
        title=registration.title,
        verdict=judge_all(findings),
        claims={finding.claim.says: finding.verdict for finding in findings},
        baseline=registration.baseline,
        seeds=registration.seeds,
        recipe={key: value for key, value in shared.items() if key not in ("name", "seed", "credit")},
        arms=tuple(arms),
    )
