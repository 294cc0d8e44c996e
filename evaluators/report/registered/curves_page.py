"""Page of one's own learning curve beside those of registered comparisons, each labelled with what was run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gymcp.evaluators.report.curves import Curve, success_chart
from gymcp.evaluators.report.formatting import percent
from gymcp.evaluators.report.html import Html, element, table
from gymcp.evaluators.report.registered.curves_file import RegisteredArm, RegisteredCurves
from gymcp.evaluators.report.sections import document, section
from gymcp.evaluators.report.training_data import spread_over
from gymcp.evaluators.report.training_page import curves_of_run, points, recipe_differences
from gymcp.evaluators.statistics import t_by_task
from gymcp.evaluators.training_curves import HeldOut, Rows
from gymcp.types import Json


def render_curves(
    title: str,
    recipe: Mapping[str, Json],
    rows: Rows,
    held_out: Sequence[HeldOut],
    comparisons: Sequence[RegisteredCurves],
) -> str:
    """The page. `recipe`, `rows`, `held_out`: recipe, metrics and evaluations of the run of one's own."""
    credit = f"Credit by {_find(recipe, 'credit', 'preset')}, seed {recipe.get('seed', 0)}"
    own = section(
        f"{title}: one run, practised just now",
        success_chart(curves_of_run(rows, held_out)),
        note=f"{credit}; {describe_ground(recipe)}. Bands are 95 % intervals over held-out tasks.",
    )
    parts = [part for each in comparisons for part in _show_comparison(each, title, recipe)]
    return document(
        f"{title}: learning curves",
        element("h1", "Learning curves, and whose they are"),
        element(
            "p",
            "The first curve is of the run beside this page. The others were measured before and come with the package;"
            " they are of other runs.",
            class_="soft",
        ),
        own,
        *parts,
    )


def describe_ground(recipe: Mapping[str, Json]) -> str:
    """Environment, levels, budget and held-out tasks of a recipe, in words."""
    levels = ", ".join(map(str, _find(recipe, "tasks", "levels") or ())) or "all"
    groups, episodes = _find(recipe, "rollout", "groups"), _find(recipe, "rollout", "episodes")
    tasks = _find(recipe, "evaluation", "final_tasks") or _find(recipe, "evaluation", "tasks")
    return (
        f"environment {recipe.get('env')}, level {levels}; {_find(recipe, 'learn', 'iterations')} iterations of"
        f" {groups} tasks with {episodes} episodes each; {tasks} held-out tasks at the end"
    )


def _find(recipe: Mapping[str, Json], part: str, key: str) -> Json:
    found = recipe.get(part)
    return found.get(key) if isinstance(found, Mapping) else None


def _show_comparison(found: RegisteredCurves, title: str, recipe: Mapping[str, Json]) -> list[Html]:
    """Curves with bands over seeds, figures of the arms, claims, and the settings in which recipes differ."""
    seeds = ", ".join(map(str, found.seeds))
    facts = f"Seeds {seeds}; {describe_ground(found.recipe)}."
    bands = "Bold: the mean over seeds, in a band from the lowest to the highest."
    digests = f"Registration {found.digest[:16]}, recipe {found.recipe_digest[:16]}."
    claims = (element("li", f"{claim}: ", element("b", verdict)) for claim, verdict in found.claims.items())
    return [
        section(
            f"Registered comparison {found.registration}: {found.title}",
            success_chart([curve for number, arm in enumerate(found.arms, 1) for curve in _curves_of(arm, number)]),
            table(_HEADINGS, [_arm_row(found, arm) for arm in found.arms]),
            element("p", "Claimed before the first run, and what came out: ", element("b", found.verdict), "."),
            element("ul", *claims),
            note=f"{facts} {bands} {digests}",
        ),
        recipe_differences([(title, _ground_of(recipe)), (found.registration, _ground_of(found.recipe))]),
    ]


_HEADINGS = (
    "arm", "#seeds", "#learning rate", "#before", "#at the end", "#less the baseline, points",
    "#95 % interval over seeds",
)  # fmt: skip


def _ground_of(recipe: Mapping[str, Json]) -> dict[str, Json]:
    """The recipe without what the arms of a comparison differ in."""
    learn = recipe.get("learn") or {}
    rest = {key: value for key, value in recipe.items() if key != "credit"}
    return {**rest, "learn": {key: value for key, value in learn.items() if key != "learning_rate"}}


def _curves_of(arm: RegisteredArm, colour: int) -> list[Curve]:
    """Every seed thinly, and their mean in its band."""
    lines = [sorted(line.items()) for line in arm.success.values()]
    spread = spread_over(list(arm.success.values()))
    mean = Curve(
        name=f"{arm.label}, {len(lines)} seeds",
        points=[(float(each.iteration), each.mean) for each in spread],
        band=[(float(each.iteration), each.low, each.high) for each in spread],
        colour=colour,
    )
    return [*(Curve(name=arm.label, points=line, colour=colour, thin=True) for line in lines), mean]


def _arm_row(found: RegisteredCurves, arm: RegisteredArm) -> tuple[Html | str, ...]:
    first, last = ({seed: line[at(line)] for seed, line in arm.success.items()} for at in (min, max))
    cells = (arm.label, str(len(last)), f"{arm.rate:g}", percent(_mean(first)), percent(_mean(last)))
    if arm.name == found.baseline:
        return (*cells, "–", "")
    base = next(each for each in found.arms if each.name == found.baseline)
    gains = {seed: share - base.success[seed][max(base.success[seed])] for seed, share in last.items()}
    bounds = t_by_task({str(seed): [gain] for seed, gain in gains.items()})
    ends = f"{points(bounds.low, '')} to {points(bounds.high, '')}" if bounds else ""
    return (*cells, points(_mean(gains), ""), ends)


def _mean(values: Mapping[int, float]) -> float:
    return math.fsum(values.values()) / len(values)
