"""``report.html`` of runs on several suites: a table of suites and models, then each run by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gymcp.evaluators.compare import Comparison
from gymcp.evaluators.report.caveats.denominators import headline, net_of_price
from gymcp.evaluators.report.comparison_page import budget_section, compare_runs, compare_tries
from gymcp.evaluators.report.formatting import interval, interval_bar, seconds
from gymcp.evaluators.report.html import Html, element, join, table
from gymcp.evaluators.report.page import is_gate, latency_cells, reasons, weak
from gymcp.evaluators.report.run_data import WORST_TASKS, Evidence
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
from gymcp.evaluators.report.training_page import anchor_of, trainings
from gymcp.evaluators.suite_groups import group_by_suite, list_models, model_of
from gymcp.visible_text import shorten

MAX_NAME_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRuns:
    """Runs of the same tasks."""

    name: str
    runs: tuple[Evidence, ...]
    comparison: Comparison | None
    """None if there are no two runs to compare."""


def compare_suites(runs: Sequence[Evidence]) -> tuple[SuiteRuns, ...]:
    """The runs that are no training runs, by suite, with the comparison of each suite."""
    played = [each for each in runs if each.recipe is None]
    groups = group_by_suite(played, lambda each: each.run.config, lambda each: each.name)
    return tuple(
        SuiteRuns(name=name, runs=of_suite, comparison=compare_runs(of_suite) if len(of_suite) > 1 else None)
        for name, of_suite in groups
    )


def matrix_title(suites: Sequence[SuiteRuns]) -> str:
    """Title with the numbers of suites and models, and the names of the suites."""
    runs = [each for of_suite in suites for each in of_suite.runs]
    word = "model" if any(each.run.config.get("policy") for each in runs) else "agent"
    parts = ((len(suites), "suite"), (len(list_models(each.run.config for each in runs)), word))
    size = " × ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, word in parts)
    return f"{size}: {', '.join(shorten(each.name, MAX_NAME_CHARS) for each in suites)}"


def render_matrix(runs: Sequence[Evidence], suites: Sequence[SuiteRuns], notices: Sequence[str]) -> str:
    """Page of runs on several suites, and of training runs among them."""
    training = [each for each in runs if each.recipe is not None]
    title = matrix_title(suites)
    return document(
        title,
        element("h1", title),
        problems(notices),
        _matrix(suites),
        _verdicts(suites),
        *(budget_section(each) for of_suite in suites for each in compare_tries(of_suite.runs, of_suite.comparison)),
        _costs(suites),
        *(_own_section(each, of_suite) for of_suite in suites for each in of_suite.runs),
        *((element("h2", "Training runs", class_="run"), trainings(training)) if training else ()),
        _origins([each for of_suite in suites for each in of_suite.runs]),
        element("footer", f"gymcp · {', '.join(str(each.run.folder) for each in runs)}"),
    )


def _matrix(suites: Sequence[SuiteRuns]) -> Html:
    """Success with its interval: one row per suite, one column per model."""
    models = list_models(each.run.config for of_suite in suites for each in of_suite.runs)
    rows: list[tuple[Html | str, ...]] = [
        (
            shorten(of_suite.name, MAX_NAME_CHARS),
            *(join(*(_rate(each) for each in of_suite.runs if model_of(each.run.config) == model)) for model in models),
        )
        for of_suite in suites
    ]
    note = "Share of scored episodes with a full score, with its 95 % interval. A figure leads to its run."
    if any(net_of_price(each) for of_suite in suites for each in of_suite.runs):
        note += " Net of price: the mean score less what questions or calls cost."
    return rows_section("Success", ("suite", *(shorten(model, MAX_NAME_CHARS) for model in models)), rows, note)


def _rate(evidence: Evidence) -> Html:
    overall, net = evidence.metrics.overall, net_of_price(evidence)
    whole = overall.scored == overall.episodes
    return element(
        "span",
        element("a", element("b", headline(evidence)), href=f"#{anchor_of(evidence)}"),
        interval_bar(overall.success, overall.ci95)
        if overall.success is not None and overall.ci95 and not evidence.refusal
        else join(),
        element(
            "small",
            overall.coverage
            if evidence.refusal
            else interval(overall.ci95)
            if whole
            else f"{interval(overall.ci95)} · {overall.coverage}",
        ),
        element("small", f"net of price {net}") if net else join(),
        class_="rate",
    )


def _verdicts(suites: Sequence[SuiteRuns]) -> Html:
    lines = [
        element("li", element("b", shorten(each.name, MAX_NAME_CHARS)), f": {_verdict(each.comparison)}")
        for each in suites
        if each.comparison is not None
    ]
    return section("Which is better", element("ul", *lines, class_="pairs")) if lines else join()


def _verdict(comparison: Comparison) -> str:
    """Statement about the pair if there is one, or the verdict on several."""
    return comparison.pairs[0].words if len(comparison.pairs) == 1 else comparison.verdict


def _costs(suites: Sequence[SuiteRuns]) -> Html:
    """Money, tokens and latency of each run; columns that no run has are left out."""
    headings = ("suite", "model", "#cost", "#cost of a pass", "#tokens read", "#tokens written", "#tokens/s",
                "#calls of an episode", "#model p50", "#model p95", "#request p50", "#request p95", "#first token p50",
                "#first token p95", "#tool p50", "#tool p95", "#elapsed")  # fmt: skip
    rows: list[tuple[Html | str, ...]] = []
    for of_suite in suites:
        for each in of_suite.runs:
            metrics = each.metrics
            cost, calls = metrics.effort.get("cost"), metrics.effort.get("tool_calls")
            rows.append(
                (
                    shorten(of_suite.name, MAX_NAME_CHARS),
                    element("span", shorten(model_of(each.run.config), MAX_NAME_CHARS), class_="word"),
                    amount(metrics.spent.cost) if metrics.spent.cost else "–",
                    amount(cost.per_pass) if cost and cost.mean.value else "–",
                    f"{metrics.spent.prompt_tokens:,}" if metrics.spent.prompt_tokens else "–",
                    f"{metrics.spent.completion_tokens:,}" if metrics.spent.completion_tokens else "–",
                    amount(metrics.tokens_per_s) if metrics.tokens_per_s else "–",
                    amount(calls.mean.value) if calls else "–",
                    *latency_cells(metrics.model_latency),
                    *latency_cells(metrics.request_latency),
                    *latency_cells(metrics.first_token_latency),
                    *latency_cells(metrics.tool_latency),
                    seconds(metrics.wall_s),
                )
            )
    kept = [at for at in range(len(headings)) if at < 2 or any(row[at] != "–" for row in rows)]
    chosen: list[tuple[Html | str, ...]] = [tuple(row[at] for at in kept) for row in rows]
    note = (
        "Cost and tokens of all attempts. Latency of a model is that of one decision, of a tool that of one call;"
        " the time of a request leaves out retries and waiting in the client; tokens/s are those written in a second"
        " of requests."
    )
    return rows_section("What it took", tuple(headings[at] for at in kept), chosen, note)


def _own_section(evidence: Evidence, of_suite: SuiteRuns) -> Html:
    """A run's own figures: its weak parts, the reasons of its failures, and its gates."""
    overall = evidence.metrics.overall
    prefix = f"{anchor_of(evidence)}-"
    tasks = join()
    if evidence.worst and not is_gate(evidence):
        words = f"tasks it fails: {len(evidence.worst):,}; the worst with transcripts"
        listed = worst(evidence, prefix=prefix, most=WORST_TASKS), transcripts(evidence, prefix=prefix)
        tasks = element("details", element("summary", words), *listed)
    return element(
        "div",
        element("h2", f"{model_of(evidence.run.config)} on {of_suite.name}", class_="run", id=anchor_of(evidence)),
        element(
            "p",
            element("b", headline(evidence)),
            f" · {interval(overall.ci95)} · " if overall.ci95 and not evidence.refusal else " · ",
            evidence.refusal or overall.coverage,
            element("span", f" · {evidence.name}", class_="soft"),
        ),
        element(
            "div",
            element("div", weak(evidence.metrics), reasons(evidence)),
            gates(evidence.gates, evidence.run, folded=True),
            class_="first",
        ),
        tasks,
    )


def _origins(runs: Sequence[Evidence]) -> Html:
    """Provenance of each run, folded."""
    parts = []
    for each in runs:
        rows: list[tuple[Html | str, ...]] = [
            (name, element("pre", shorten(value, 400))) for name, value in provenance(each)
        ]
        parts.append(element("details", element("summary", each.name), table(("", ""), rows)))
    return section("Where they come from", *parts)
