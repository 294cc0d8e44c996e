"""``report.html`` of training runs: what they have learnt on held-out tasks comes first, practice second."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from gymcp.evaluators.report.caveats.credit import credit_section
from gymcp.evaluators.report.caveats.held_out import describe_success
from gymcp.evaluators.report.caveats.trees import trees_section
from gymcp.evaluators.report.curves import Curve, panels, success_chart
from gymcp.evaluators.report.formatting import interval, interval_bar, percent, seconds
from gymcp.evaluators.report.html import Html, element, fold_if_narrow, join, keep_whole, table
from gymcp.evaluators.report.page import (
    breakdown,
    by_name,
    calls,
    effort,
    origin,
    outcomes,
    reasons,
    suite_line,
    time_section,
    weak,
    without_score,
)
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.report.sections import (
    document,
    facts_list,
    list_leaves,
    problems,
    rows_section,
    section,
    transcripts,
    worst,
)
from gymcp.evaluators.report.training_data import RecipeGroup, group_by_recipe, spread_of
from gymcp.evaluators.training_curves import HeldOut, Rows, columns_of, practice_of, read_held_out
from gymcp.types import Json
from gymcp.visible_text import shorten

PRACTICE_COLOUR = 5
MAX_SPLITS = 12
MAX_KEYS = 60
_EMPTY = dict.fromkeys(("", "[]", "{}", "null"), "–")
"""Settings that say nothing, as they are shown."""


def render_training(evidence: Evidence) -> str:
    """Page of one training run."""
    held_out = read_held_out(evidence.curves, evidence.heldout)[:MAX_SPLITS]
    metrics = evidence.metrics
    success = describe_success(evidence, held_out[0]) if held_out else percent(metrics.overall.success)
    return document(
        f"{evidence.name}: {success}",
        element("h1", evidence.name),
        suite_line(evidence),
        problems(evidence.problems),
        *(_headline(evidence, held_out[0]) if held_out else (_no_held_out(evidence),)),
        _practice_facts(evidence),
        section("Learning curve", success_chart(curves_of_run(evidence.curves, held_out))),
        _splits(evidence, held_out),
        section(
            "Everything that was measured",
            panels([columns_of(evidence.curves)]),
            note="Every column of metrics.jsonl over the iterations; each axis runs from the lowest to the highest"
            " value, and the figure is the last one.",
        ),
        element("div", weak(metrics), reasons(evidence), class_="pair"),
        *(breakdown(axis, parts, of="Practice") for axis, parts in metrics.breakdowns.items()),
        effort(metrics),
        calls(metrics),
        time_section(metrics),
        by_name("Tools", metrics.spent.tools),
        trees_section(evidence),
        outcomes(metrics),
        worst(evidence),
        without_score(evidence.rows),
        credit_section(evidence),
        transcripts(evidence),
        _recipe(evidence.recipe or {}),
        origin(evidence),
    )


def _headline(evidence: Evidence, held: HeldOut) -> tuple[Html, ...]:
    """Held-out success after the last evaluation, and its change since the first; bounds if too few have a score."""
    last = held.last
    if refusal := evidence.refuse_held_out(held):
        return (
            element(
                "div",
                element("strong", describe_success(evidence, held)),
                element("span", "no headline figure: too few held-out tasks have a score", class_="warn"),
                class_="headline",
            ),
            element("p", f"{refusal}.", class_="notice"),
        )
    tasks = f"{last.scored} held-out tasks" if last.scored is not None else "held-out tasks"
    return (
        element(
            "div",
            element("strong", percent(last.success)),
            *(
                (element("span", f"95 % interval {interval(last.ci95)}"), interval_bar(last.success, last.ci95))
                if last.ci95
                else ()
            ),
            class_="headline",
        ),
        element("p", f"of {tasks} (split {held.split}) are solved after iteration {last.iteration}.", class_="soft"),
        element("p", *_change(held), class_="change") if held.first is not last else join(),
    )


def _change(held: HeldOut) -> tuple[Html | str, ...]:
    first, pair = held.first, held.change
    since = f" since iteration {first.iteration} ({percent(first.success)})"
    if pair is None or pair.difference is None:
        why = "not paired by task: this run did not record the result of each task"
        return (
            element("b", points(held.last.success - first.success)),
            since,
            element("span", f"; {why}", class_="soft"),
        )
    bounds = f"; 95 % interval {points(pair.ci95.low, '')} to {points(pair.ci95.high)}" if pair.ci95 else ""
    chance = f", p = {pair.p_permutation:.2g}" if pair.p_permutation is not None else ""
    tests = f", paired over {pair.tasks} tasks: {pair.better} better, {pair.worse} worse{chance}"
    return element("b", points(pair.difference)), since, bounds, element("span", keep_whole(tests), class_="soft")


def points(difference: float, unit: str = " points") -> str:
    """A difference of shares: "+13.5 points"."""
    return f"{100 * difference:+.1f}{unit}".replace("-", "\N{MINUS SIGN}")


def _no_held_out(evidence: Evidence) -> Html:
    """Practice in place of held-out success, with the words that say so."""
    overall = evidence.metrics.overall
    return join(
        element(
            "div",
            element("strong", percent(overall.success)),
            element("span", f"of practice · {overall.coverage}"),
            class_="headline",
        ),
        element(
            "p", "No held-out task has been evaluated yet, so this is what the policy was trained on.", class_="soft"
        ),
    )


def _practice_facts(evidence: Evidence) -> Html:
    metrics, practice = evidence.metrics, practice_of(evidence.curves)
    wanted = (evidence.recipe or {}).get("learn")
    total = wanted.get("iterations") if isinstance(wanted, Mapping) else None
    done = max((int(row["iteration"]) for row in evidence.curves), default=0)
    facts = [
        ("Iterations", f"{done:,} of {total:,}" if isinstance(total, int) else f"{done:,}"),
        *([("Practice, last iteration", percent(practice[-1][1]))] if practice else []),
        ("Practice, mean of all", percent(metrics.overall.success)),
        ("Practice episodes", metrics.overall.coverage),
        ("Tool calls", f"{metrics.tool_calls:,}"),
        ("Elapsed in episodes", seconds(metrics.wall_s)),
    ]
    return facts_list(facts)


def curves_of_run(rows: Rows, held_out: Sequence[HeldOut]) -> list[Curve]:
    """The practice of a run, and its success on each held-out split."""
    curves = [Curve(name="practice", points=practice_of(rows), colour=PRACTICE_COLOUR, thin=False)]
    for number, held in enumerate(held_out):
        band = [(each.iteration, each.ci95.low, each.ci95.high) for each in held.evaluations if each.ci95]
        line = [(float(each.iteration), each.success) for each in held.evaluations]
        name = f"held out: {held.split}, with 95 % intervals" if band else f"held out: {held.split}"
        curves.append(Curve(name=name, points=line, band=band, colour=number % PRACTICE_COLOUR))
    return curves


def _splits(evidence: Evidence, held_out: Sequence[HeldOut]) -> Html:
    """First and last evaluation of each split."""
    rows: list[tuple[Html | str, ...]] = []
    for held in held_out:
        last, pair = held.last, held.change
        bounds = f"{points(pair.ci95.low, '')} to {points(pair.ci95.high, '')}" if pair and pair.ci95 else ""
        moved = held.first is not last
        change = pair.difference if pair and pair.difference is not None else last.success - held.first.success
        rows.append(
            (
                held.split,
                percent(held.first.success),
                describe_success(evidence, held),
                interval(last.ci95),
                interval_bar(last.success, last.ci95) if last.ci95 else "",
                points(change, "") if moved else "–",
                bounds or ("not paired" if moved else ""),
                str(pair.tasks) if pair else "–" if last.scored is None else str(last.scored),
                f"{held.newest.scored} of {held.newest.tasks}" if held.newest else "–",
            )
        )
    headings = (
        "split",
        "#first",
        "#last",
        "#95 % interval",
        "",
        "#change, points",
        "#95 % interval of the change",
        "#tasks",
        "#scored",
    )
    return rows_section("Held-out tasks", headings, rows)


def _recipe(recipe: Mapping[str, Json]) -> Html:
    """The recipe by section, a line for each key."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for key, value in list_leaves(recipe):
        name, dot, rest = key.partition(".")
        sections.setdefault(name if dot else "", []).append((rest if dot else key, value))
    parts = [
        element(
            "section",
            element("h3", name or "recipe"),
            element(
                "dl",
                *(
                    element("div", element("dt", key), element("dd", shorten(_EMPTY.get(value, value), 400)))
                    for key, value in rows
                ),
            ),
        )
        for name, rows in sections.items()
    ]
    settings = sum(map(len, sections.values()))
    shown = element("div", *parts, class_="settings")
    return section("Recipe", fold_if_narrow(f"show {settings} settings", shown)) if parts else join()


def render_trainings(runs: Sequence[Evidence], notices: Sequence[str]) -> str:
    """Page of several training runs."""
    envs = ", ".join(dict.fromkeys(str(each.run.config.get("env", "")) for each in runs))
    title = f"{len(runs)} training run{'' if len(runs) == 1 else 's'} of {envs}"
    return document(
        title,
        element("h1", title),
        problems(notices),
        trainings(runs),
        element("footer", f"gymcp · {', '.join(str(each.run.folder) for each in runs)}"),
    )


def trainings(runs: Sequence[Evidence]) -> Html:
    """Training runs beside each other: curves by recipe, a table of the runs, and the differences of their recipes."""
    groups = group_by_recipe(runs)
    splits = dict.fromkeys(held.split for each in runs for held in read_held_out(each.curves, each.heldout))
    charts = [
        section(f"Held-out success: {split}", success_chart(_curves_together(groups, split)))
        for split in list(splits)[:MAX_SPLITS]
    ]
    practice = [
        Curve(name=f"{each.name}", points=practice_of(each.curves), colour=number)
        for number, group in enumerate(groups)
        for each in group.runs
    ]
    return join(
        _standings(groups, next(iter(splits), None)),
        *charts,
        section("Practice", success_chart(practice)),
        recipe_differences([(group.name, group.runs[0].recipe or {}) for group in groups]),
        section(
            "Everything that was measured",
            panels(
                [columns_of(each.curves) for group in groups for each in group.runs],
                [number for number, group in enumerate(groups) for _ in group.runs],
            ),
            note="Every column of metrics.jsonl over the iterations, in the colours of the recipes above.",
        ),
        *(_own_section(each) for each in runs),
    )


def _curves_together(groups: Sequence[RecipeGroup], split: str) -> list[Curve]:
    """The mean of each recipe with its range over seeds, and every run thinly."""
    curves = []
    for number, group in enumerate(groups):
        of_runs = [
            held for each in group.runs for held in read_held_out(each.curves, each.heldout) if held.split == split
        ]
        lines = [[(float(each.iteration), each.success) for each in held.evaluations] for held in of_runs]
        if len(lines) == 1:
            band = [(each.iteration, each.ci95.low, each.ci95.high) for each in of_runs[0].evaluations if each.ci95]
            curves.append(
                Curve(name=f"{group.name}: one run, 95 % intervals", points=lines[0], band=band, colour=number)
            )
        elif lines:
            spread = spread_of(group, split)
            curves += [Curve(name=group.name, points=line, colour=number, thin=True) for line in lines]
            curves.append(
                Curve(
                    name=f"{group.name}: mean of {len(lines)} seeds; band from the lowest to the highest",
                    points=[(float(each.iteration), each.mean) for each in spread],
                    band=[(float(each.iteration), each.low, each.high) for each in spread],
                    colour=number,
                )
            )
    return curves


def _standings(groups: Sequence[RecipeGroup], split: str | None) -> Html:
    """A row for each recipe with several runs, and one for each run."""
    rows: list[tuple[Html | str, ...]] = []
    for number, group in enumerate(groups):
        swatch = element("i", class_=f"swatch s{number % 6}")
        of_group = [_run_row(each, split, swatch) for each in group.runs]
        spread = spread_of(group, split) if split is not None and len(group.runs) > 1 else ()
        if spread and not any(
            held.split == split and each.refuse_held_out(held)
            for each in group.runs
            for held in read_held_out(each.curves, each.heldout)
        ):
            first, last = spread[0], spread[-1]
            span = f"{100 * last.low:.1f} to {100 * last.high:.1f} % over seeds"
            name = element("span", swatch, element("b", f"{group.name}, {last.seeds} seeds"))
            change = points(last.mean - first.mean, "")
            rows.append((name, "all", str(last.iteration), element("b", percent(last.mean)), span, change, "", ""))
        rows += of_group
    held = f"held-out success ({split})" if split is not None else "held-out success"
    headings = ("run", "#seed", "#iteration", f"#{held}", "#range or 95 % interval", "#change, points",
                "#95 % interval of the change", "#practice, last")  # fmt: skip
    return rows_section("What was learnt", headings, rows)


def _run_row(each: Evidence, split: str | None, swatch: Html) -> tuple[Html | str, ...]:
    held = next((held for held in read_held_out(each.curves, each.heldout) if held.split == split), None)
    practice, seed = practice_of(each.curves), str((each.recipe or {}).get("seed", "–"))
    name = element("span", swatch, element("a", each.name, href=f"#{anchor_of(each)}"))
    trained = percent(practice[-1][1]) if practice else "–"
    if held is None:
        return name, seed, "–", "–", "", "–", "", trained
    last, pair = held.last, held.change
    bounds = f"{points(pair.ci95.low, '')} to {points(pair.ci95.high, '')}" if pair and pair.ci95 else ""
    change = pair.difference if pair and pair.difference is not None else last.success - held.first.success
    moved = points(change, "") if last is not held.first else "–"
    success = describe_success(each, held)
    return name, seed, str(last.iteration), success, interval(last.ci95), moved, bounds, trained


def anchor_of(evidence: Evidence) -> str:
    """Id of a run's own section: letters and digits only, whatever its name holds."""
    return f"run-{hashlib.sha256(evidence.name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def recipe_differences(recipes: Sequence[tuple[str, Mapping[str, Json]]]) -> Html:
    """Keys in which the named recipes differ, but for seed and name; empty if there is one recipe only."""
    if len(recipes) < 2:
        return join()
    tables = [dict(list_leaves(recipe)) for _, recipe in recipes]
    keys = [key for key in dict.fromkeys(key for each in tables for key in each) if key not in ("seed", "name")]
    differing = [key for key in keys if len({each.get(key) for each in tables}) > 1]
    rows: list[tuple[Html | str, ...]] = [
        (key, *(shorten(each.get(key, "–"), 200) for each in tables)) for key in differing[:MAX_KEYS]
    ]
    return rows_section("Where the recipes differ", ("key", *(name for name, _ in recipes)), rows)


def _own_section(evidence: Evidence) -> Html:
    """A training run's own figures on a page of several."""
    held_out = read_held_out(evidence.curves, evidence.heldout)[:MAX_SPLITS]
    started, folder = evidence.run.created or "not recorded", str(evidence.run.folder)
    rows: list[tuple[Html | str, ...]] = [("started", started), ("folder", folder)]
    return element(
        "div",
        element("h2", evidence.name, class_="run", id=anchor_of(evidence)),
        *(_headline(evidence, held_out[0]) if held_out else (_no_held_out(evidence),)),
        _splits(evidence, held_out) if len(held_out) > 1 else join(),
        table(("", ""), rows),
    )
