"""The report as Markdown, for places that show no HTML: a pull request, a terminal, a notebook."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gymcp.evaluators.compare import Comparison
from gymcp.evaluators.report.charts import RADAR, TIMES
from gymcp.evaluators.report.formatting import interval, percent, seconds
from gymcp.evaluators.report.html import Html
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.report.sections import effort_rows, judge_rows, provenance, score_line, shorten
from gymcp.visible_text import visible

MAX_LISTED = 10
MAX_REASON = 200


def render_markdown(runs: Sequence[Evidence], comparison: Comparison | None, unread: Sequence[str]) -> str:
    """Report of one run or of several."""
    lines: list[str] = []
    if len(runs) > 1 or unread:
        lines += _comparison(runs, comparison, unread)
    for each in runs:
        lines += _run(each, level="##" if len(runs) > 1 else "#")
    return "\n".join(lines) + "\n"


def _comparison(runs: Sequence[Evidence], comparison: Comparison | None, unread: Sequence[str]) -> list[str]:
    lines = [f"# {len(runs)} runs", "", *_quote_problems([*unread, *(comparison.problems if comparison else ())])]
    if comparison is not None:
        lines += [f"**{plain(comparison.verdict)}**", ""]
    rows = [(each.name, score_line(each.metrics)) for each in runs]
    lines += _table(("run", "success"), rows)
    if comparison is not None:
        lines += [f"* {plain(pair.words)}" for pair in comparison.pairs] + [""]
    return lines


def _run(evidence: Evidence, *, level: str) -> list[str]:
    metrics = evidence.metrics
    lines = [f"{level} {plain(evidence.name)}", "", *_quote_problems(evidence.problems)]
    lines += [f"**{score_line(metrics)}**", ""]
    if metrics.overall.ci95:
        lines += [f"Share of scored episodes with a full score; interval: {metrics.overall.ci95.method}.", ""]
    gates = [
        (gate.agent, percent(gate.wanted), gate.state, f"{gate.scored - gate.broken}/{gate.scored}")
        for gate in evidence.gates
    ]
    lines += _part(level, "Gates of the suite", ("agent", "must score", "gate", "as it must"), gates)
    for axis, parts in metrics.breakdowns.items():
        rows = [(value, percent(part.success), interval(part.ci95), part.coverage) for value, part in parts.items()]
        lines += _part(level, f"By {axis}", (axis, "success", "95 % interval", "coverage"), rows)
    if metrics.radar is not None:
        radar = [(name, percent(getattr(metrics.radar, name).value)) for name in RADAR]
        lines += _part(level, "Beside the gold calls (MCP-RADAR)", ("dimension", "mean"), radar)
    effort = [tuple(cell.text if isinstance(cell, Html) else cell for cell in row) for row in effort_rows(metrics)]
    lines += _part(level, "What it took", ("", "mean of an episode", "95 % interval", "for each success"), effort)
    times = [(name, percent(metrics.times.share[name]), seconds(metrics.times.seconds[name])) for name in TIMES]
    lines += _part(level, "Where the time went", ("", "share", "summed"), times)
    pass_k = [(str(each.k), percent(each.at), percent(each.hat), str(each.tasks)) for each in metrics.pass_k]
    lines += _part(level, "Judge", ("", ""), judge_rows(evidence))
    lines += _part(level, "Over trials", ("k", "pass@k", "pass^k", "tasks"), pass_k)
    outcomes = [(str(outcome), str(count)) for outcome, count in metrics.outcomes.items()]
    lines += _part(level, "How episodes ended", ("outcome", "episodes"), outcomes)
    worst = [
        (
            shorten(each.task, 80),
            f"{each.mean:.2f}",
            f"{each.passed}/{each.trials}",
            shorten(each.worst.reason, MAX_REASON),
        )
        for each in evidence.worst[:MAX_LISTED]
    ]
    lines += _part(level, "Tasks it fails, worst first", ("task", "mean score", "solved", "why"), worst)
    origin = [(name, shorten(value, MAX_REASON)) for name, value in provenance(evidence)]
    return lines + _part(level, "Where it came from", ("", ""), origin)


def _quote_problems(problems: Sequence[str]) -> list[str]:
    """One block quotation per problem; blank lines keep it from continuing in the next text."""
    return [line for problem in problems for line in (f"> {plain(problem)}", "")]


def _part(level: str, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"{level}# {title}", "", *_table(headings, rows)] if rows else []


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return [*(f"| {' | '.join(plain(cell) for cell in row)} |" for row in lines), ""]


def plain(text: str) -> str:
    """The text as one line that no Markdown reader takes for markup."""
    flat = " ".join(visible(text).split())
    return re.sub(r"([\\`*_{}\[\]<>|~#$&])", r"\\\1", flat) if flat != "---" else flat
