"""``report.html`` of several runs: the better run, by how much and how surely, and the weak spots of each."""

from __future__ import annotations

from collections.abc import Sequence

from gymcp.errors import ConfigError
from gymcp.evaluators.compare import REFERENCE_AGENTS, Comparison, Contender, Pair, compare
from gymcp.evaluators.equal_budget import HEADINGS, TITLE, EqualBudget, compare_budgets, list_ways
from gymcp.evaluators.metrics import MIN_COVERAGE_KEY, Rate
from gymcp.evaluators.names import label_of_part, natural_order
from gymcp.evaluators.report.caveats.denominators import between, headline, net_of_price
from gymcp.evaluators.report.charts import RADAR, Dot, radar, scatter
from gymcp.evaluators.report.formatting import bar, interval, percent, seconds
from gymcp.evaluators.report.html import Html, element, join, keep_whole, name_code, table
from gymcp.evaluators.report.page import radar_note
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.report.sections import (
    amount,
    document,
    gates,
    problems,
    provenance,
    rows_section,
    section,
    transcripts,
    worst,
)
from gymcp.visible_text import shorten

MAX_DIFFERING = 20
_EFFORTS = (
    ("cost", "cost of an episode"),
    ("completion_tokens", "tokens written in an episode"),
    ("tool_calls", "tool calls in an episode"),
)


def compare_runs(runs: Sequence[Evidence]) -> Comparison | None:
    """Comparison of the runs' success; None if there is nothing to compare."""
    try:
        return compare(_list_contenders(runs))
    except ConfigError:
        return None


def compare_tries(runs: Sequence[Evidence], comparison: Comparison | None) -> tuple[EqualBudget, ...]:
    """Each searched run beside independent tries at the same budget; `comparison`: of these runs."""
    return () if comparison is None else compare_budgets(_list_contenders(runs), comparison)


def _list_contenders(runs: Sequence[Evidence]) -> list[Contender]:
    return [
        Contender(
            name=each.name,
            config={**each.run.config, MIN_COVERAGE_KEY: each.min_coverage},
            rows=each.rows,
            folder=str(each.run.folder),
            lacks_judged_s=each.lacks_judged_s,
        )
        for each in runs
    ]


def render_comparison(runs: Sequence[Evidence], comparison: Comparison | None, notices: Sequence[str]) -> str:
    """Page of several runs; `notices` lists what could not be read or compared."""
    first = runs[0]
    title = str(first.run.config.get("suite") or first.run.config.get("env") or first.name)
    return document(
        f"{len(runs)} runs of {title}",
        element("h1", f"{len(runs)} runs of {title}"),
        element(
            "p", keep_whole(comparison.verdict if comparison else "There are no two runs to compare."), class_="verdict"
        ),
        problems(notices),
        _standings(runs),
        *map(budget_section, compare_tries(runs, comparison)),
        element("div", _matrix(runs), element("div", _pairs(runs, comparison), _gates(runs)), class_="first"),
        _drawings(runs),
        _differing_tasks(runs),
        *(
            element(
                "div",
                element("h2", each.name, class_="run"),
                worst(each, prefix=f"r{n}-"),
                transcripts(each, prefix=f"r{n}-"),
            )
            for n, each in enumerate(runs)
            if each.worst and each.run.config.get("agent") not in ("null", "mutated")
        ),
        _origins(runs),
        element("footer", f"gymcp · {', '.join(str(each.run.folder) for each in runs)}"),
    )


def budget_section(found: EqualBudget) -> Html:
    """Table of a search, one try, and as many tries as the search pays for."""
    headings = tuple(f"#{heading}" if heading else "" for heading in HEADINGS)
    return rows_section(TITLE, headings, list(list_ways(found)), f"Means for one answer. {found.words}")


def _swatch(number: int) -> Html:
    return element("i", class_=f"swatch s{number % 6}")


def _standings(runs: Sequence[Evidence]) -> Html:
    successes = [each.metrics.overall.success for each in runs]
    order = sorted(range(len(runs)), key=lambda n: -1.0 if (success := successes[n]) is None else success, reverse=True)
    has_prices = any(net_of_price(each) for each in runs)
    rows: list[tuple[Html | str, ...]] = []
    for n in order:
        metrics = runs[n].metrics
        overall, cost = metrics.overall, metrics.effort.get("cost")
        net = net_of_price(runs[n])
        rows.append(
            (
                element("span", _swatch(n), runs[n].name),
                element("b", headline(runs[n])),
                "" if runs[n].refusal else interval(overall.ci95),
                element("span") if runs[n].refusal else bar(overall),
                element("span", overall.coverage, class_="" if overall.scored == overall.episodes else "warn"),
                "–" if overall.bounds is None else between(overall.bounds),
                percent(metrics.score.value),
                *([net or "–"] if has_prices else []),
                amount(metrics.effort["tool_calls"].mean.value),
                amount(cost.per_pass) if cost and cost.mean.value else "–",
                seconds(metrics.wall_s),
            )
        )
    headings = (
        "run",
        "#success",
        "#95 % interval",
        "",
        "coverage",
        "#if lost had failed .. succeeded",
        "#mean score",
        *(["#net of price"] if has_prices else []),
        "#calls",
        "#cost of a pass",
        "#elapsed",
    )
    return rows_section("Who is better", headings, rows)


def _pairs(runs: Sequence[Evidence], comparison: Comparison | None) -> Html:
    """Statements about pairs of runs, with the statistics folded below; pairs with gate runs are only in the folded
    part."""
    pairs = comparison.pairs if comparison else ()
    gates = {each.name for each in runs if each.run.config.get("agent") in REFERENCE_AGENTS}
    ranked_pairs = [pair for pair in pairs if not {pair.a, pair.b} & gates] or pairs
    ranked = [element("li", keep_whole(pair.words)) for pair in ranked_pairs if pair.better]
    apart = [pair for pair in ranked_pairs if not pair.better]
    if len(apart) == 1:
        ranked.append(element("li", keep_whole(apart[0].words), class_="soft"))
    elif apart:
        names = "; ".join(f"{pair.a} and {pair.b}" for pair in apart)
        ranked.append(element("li", f"Cannot be told apart: {names}.", class_="soft"))
    summary = "what this rests on" if len(pairs) == 1 else f"all {len(pairs)} pairs, and what this rests on"
    tests = [
        element("li", keep_whole(pair.words), element("small", keep_whole(f" {_tests(pair, len(pairs))}.")))
        for pair in pairs
    ]
    behind = element(
        "details",
        element("summary", summary),
        element("ul", *tests, class_="pairs"),
    )
    return (
        section("By how much, and how sure that is", element("ul", *ranked, class_="pairs"), behind)
        if pairs
        else join()
    )


def _tests(pair: Pair, pairs: int) -> str:
    tried = pair.paired
    text = f"{tried.tasks} tasks: {tried.better} better, {tried.worse} worse under {pair.b}"
    if tried.p_mcnemar is not None:
        text += f"; McNemar p = {tried.p_mcnemar:.2g}"
    return text if pair.p_holm is None else f"{text}; permutation, corrected for {pairs} pairs, p = {pair.p_holm:.2g}"


def _matrix(runs: Sequence[Evidence]) -> Html:
    """Success by the first axis of the suite: one row per value, one column per run."""
    axis = next((next(iter(each.metrics.breakdowns)) for each in runs if each.metrics.breakdowns), "")
    parts = [each.metrics.breakdowns.get(axis, {}) for each in runs]
    values = sorted({value for part in parts for value in part}, key=natural_order)
    rows: list[tuple[Html | str, ...]] = [
        (label_of_part(axis, value), *(_cell(part.get(value)) for part in parts)) for value in values[:MAX_DIFFERING]
    ]
    heads = tuple(f"#{each.name}" for each in runs)
    return rows_section(f"Where they fail: by {axis}", (axis, *heads), rows) if axis else join()


def _cell(rate: Rate | None) -> Html:
    if rate is None or rate.success is None:
        return element("span", "–", class_="cell")
    shade = min(10, int(rate.success * 10))
    return element(
        "span", percent(rate.success), class_=f"cell c{shade}", title=f"{interval(rate.ci95)}; {rate.coverage}"
    )


def _drawings(runs: Sequence[Evidence]) -> Html:
    radars = [(each.name, each.metrics.radar) for each in runs if each.metrics.radar is not None]
    parts = []
    for name, unit in _EFFORTS:
        means = [each.metrics.effort[name].mean.value for each in runs]
        if not any(means):
            continue
        dots = [
            Dot(name=each.name, cost=mean, success=rate.success, low=rate.ci95.low, high=rate.ci95.high)
            for each, mean in zip(runs, means, strict=True)
            if mean is not None
            and not each.refusal
            and (rate := each.metrics.overall).success is not None
            and rate.ci95 is not None
        ]
        parts.append(section(f"Success against {unit.partition(' in ')[0]}", scatter(dots, unit)))
        break
    key = element(
        "p",
        *(element("span", element("i", class_=f"s{n % 6}"), each.name) for n, each in enumerate(runs)),
        class_="key",
    )
    if len(radars) == len(runs):
        rows: list[tuple[Html | str, ...]] = [
            (name, *(percent(getattr(dimensions, name).value) for _, dimensions in radars)) for name in RADAR
        ]
        parts.append(
            section(
                "Beside the gold calls",
                element("div", radar(radars), table(("", *(f"#{name}" for name, _ in radars)), rows), class_="drawn"),
                note=radar_note(*_radar_tasks(runs)),
            )
        )
    return element("div", element("div", *parts, class_="pair"), key) if parts else join()


def _radar_tasks(runs: Sequence[Evidence]) -> tuple[int, int]:
    """(tasks with gold calls, tasks with a score): the most of any run."""
    with_gold = max(each.metrics.radar.tasks for each in runs if each.metrics.radar is not None)
    return with_gold, max(len({row.task for row in each.rows if row.score is not None}) for each in runs)


def _gates(runs: Sequence[Evidence]) -> Html:
    first = runs[0]
    return gates(first.gates, first.run)


def _differing_tasks(runs: Sequence[Evidence]) -> Html:
    """Tasks on which the runs differ most."""
    means: list[dict[str, float]] = []
    for each in runs:
        scores: dict[str, list[float]] = {}
        for row in each.rows:
            if row.score is not None:
                scores.setdefault(row.task, []).append(row.score)
        means.append({task: sum(of_task) / len(of_task) for task, of_task in scores.items()})
    shared = [task for task in means[0] if all(task in each for each in means)]
    spread = {task: max(each[task] for each in means) - min(each[task] for each in means) for task in shared}
    differing = sorted((task for task in shared if spread[task] > 0), key=lambda task: (-spread[task], task))
    rows: list[tuple[Html | str, ...]] = [
        (name_code(task), *(f"{each[task]:.2f}" for each in means)) for task in differing[:MAX_DIFFERING]
    ]
    more = f" ({MAX_DIFFERING} of {len(differing)})" if len(differing) > MAX_DIFFERING else ""
    note = "gymcp view RUN RUN2 shows two of them side by side from the step where they part."
    return rows_section(f"Tasks on which they differ{more}", ("task", *(f"#{each.name}" for each in runs)), rows, note)


def _origins(runs: Sequence[Evidence]) -> Html:
    """Provenance that the runs share, and provenance in which they differ."""
    facts = [dict(provenance(each)) for each in runs]
    names = dict.fromkeys(name for each in facts for name in each)
    rows: list[tuple[Html | str, ...]] = []
    for name in names:
        values = [each.get(name, "–") for each in facts]
        if len(set(values)) == 1:
            rows.append((name, element("pre", shorten(values[0], 400))))
        else:
            lines = [
                element("div", _swatch(n), element("pre", shorten(value, 400)), class_="each")
                for n, value in enumerate(values)
            ]
            rows.append((name, join(*lines)))
    return rows_section("Where they come from", ("", ""), rows, fold=True)
