"""The report as Markdown, for places that show no HTML: a pull request, a terminal, a notebook."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gymcp.evaluators.equal_budget import HEADINGS, list_ways
from gymcp.evaluators.equal_budget import TITLE as BUDGET
from gymcp.evaluators.names import label_of_part
from gymcp.evaluators.report.caveats.credit import CREDIT
from gymcp.evaluators.report.caveats.denominators import (
    DENOMINATORS,
    TRIALS_HEADINGS,
    denominator_rows,
    net_of_price,
    score_line,
    trials_note,
    trials_rows,
)
from gymcp.evaluators.report.caveats.faulty import RATE_HEADINGS, TASK_HEADINGS, describe_list, rate_rows, task_rows
from gymcp.evaluators.report.caveats.faulty import TITLE as FAULTY
from gymcp.evaluators.report.caveats.held_out import describe_success
from gymcp.evaluators.report.caveats.played_user import (
    KIND_HEADINGS,
    NOT_AUDITED,
    PLAYED_USER,
    describe_audit,
    kind_rows,
    was_played,
)
from gymcp.evaluators.report.caveats.trees import (
    LEAVES,
    LEAVES_HEADINGS,
    LEAVES_NOTE,
    TREES,
    TREES_NOTE,
    leaf_rows,
    tree_rows,
)
from gymcp.evaluators.report.charts import RADAR, TIMES
from gymcp.evaluators.report.comparison_page import compare_tries
from gymcp.evaluators.report.formatting import interval, percent, seconds
from gymcp.evaluators.report.html import Html
from gymcp.evaluators.report.matrix_page import SuiteRuns, matrix_title
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.report.sections import effort_rows, judge_rows, list_leaves, provenance
from gymcp.evaluators.training_curves import read_held_out
from gymcp.visible_text import shorten, visible

MAX_LISTED = 10
MAX_REASON_CHARS = 200


def render_markdown(runs: Sequence[Evidence], suites: Sequence[SuiteRuns], unread: Sequence[str]) -> str:
    """Report of one run or of several."""
    lines: list[str] = []
    if len(runs) > 1 or unread:
        lines += _several(runs, suites, unread)
    for each in runs:
        lines += _run(each, level="##" if len(runs) > 1 else "#")
    return "\n".join(lines) + "\n"


def _several(runs: Sequence[Evidence], suites: Sequence[SuiteRuns], unread: Sequence[str]) -> list[str]:
    """All runs in a table, then what can be said of those of each suite."""
    compared = [each for each in suites if each.comparison is not None]
    apart = [problem for each in compared if each.comparison for problem in each.comparison.problems]
    title = plain(matrix_title(suites)) if len(suites) > 1 else f"{len(runs)} runs"
    lines = [f"# {title}", "", *_quote_problems([*unread, *apart])]
    of_suite = {each.name: suite.name for suite in suites for each in suite.runs}
    nets = {each.name: net_of_price(each) for each in runs}
    headings = ("run", "suite", "success", "net of price") if any(nets.values()) else ("run", "suite", "success")
    rows = [(each.name, of_suite.get(each.name, "training"), score_line(each), nets[each.name]) for each in runs]
    lines += _table(headings, [row[: len(headings)] for row in rows])
    for suite in compared:
        if (comparison := suite.comparison) is not None:
            named = f"{plain(suite.name)}: " if len(suites) > 1 else ""
            lines += [f"**{named}{plain(comparison.verdict)}**", ""]
            lines += [f"* {plain(pair.words)}" for pair in comparison.pairs] + [""]
            for budget in compare_tries(suite.runs, comparison):
                lines += [*_part("#", BUDGET, HEADINGS, list_ways(budget)), plain(budget.words), ""]
    return lines


def _run(evidence: Evidence, *, level: str) -> list[str]:
    metrics = evidence.metrics
    lines = [f"{level} {plain(evidence.name)}", "", *_quote_problems(evidence.problems)]
    lines += _describe_held_out(evidence)
    lines += [f"**{'Practice: ' if evidence.recipe is not None else ''}{score_line(evidence)}**", ""]
    lines += [plain(evidence.refusal), ""] if evidence.refusal else []
    if metrics.overall.ci95:
        lines += [f"Share of scored episodes with a full score; interval: {metrics.overall.ci95.method}.", ""]
    gates = [
        (gate.agent, percent(gate.wanted), gate.state, f"{gate.scored - gate.broken}/{gate.scored}")
        for gate in (evidence.gates if evidence.recipe is None else ())
    ]
    lines += _part(level, "Gates of the suite", ("agent", "must score", "gate", "as it must"), gates)
    for axis, parts in metrics.breakdowns.items():
        rows = [
            (label_of_part(axis, value), percent(part.success), interval(part.ci95), part.coverage)
            for value, part in parts.items()
        ]
        lines += _part(level, f"By {axis}", (axis, "success", "95 % interval", "coverage"), rows)
    if metrics.radar is not None:
        radar = [(name, percent(getattr(metrics.radar, name).value)) for name in RADAR]
        lines += _part(
            level,
            f"Beside the gold calls (MCP-RADAR, of {metrics.radar.tasks} tasks with gold calls)",
            ("dimension", "mean"),
            radar,
        )
    effort = [tuple(cell.text if isinstance(cell, Html) else cell for cell in row) for row in effort_rows(metrics)]
    lines += _part(level, "What it took", ("", "mean of an episode", "95 % interval", "for each success"), effort)
    times = [(name, percent(metrics.times.share[name]), seconds(metrics.times.seconds[name])) for name in TIMES]
    lines += _part(level, "Where the time went", ("", "share", "summed"), times)
    lines += _part(level, DENOMINATORS, ("", ""), denominator_rows(evidence))
    lines += _describe_faulty(evidence, level)
    lines += _part(level, "Judge", ("", ""), judge_rows(evidence))
    lines += _part(level, "Over trials", TRIALS_HEADINGS, trials_rows(metrics))
    lines += [plain(trials_note()), ""] if metrics.pass_k else []
    lines += _describe_trees(evidence, level)
    lines += _describe_user(evidence, level)
    outcomes = [(str(outcome), str(count)) for outcome, count in metrics.outcomes.items()]
    lines += _part(level, "How episodes ended", ("outcome", "episodes"), outcomes)
    worst = [
        (
            shorten(each.task, 80),
            f"{each.mean:.2f}",
            f"{each.passed}/{each.trials}",
            shorten(each.worst.reason, MAX_REASON_CHARS),
        )
        for each in evidence.worst[:MAX_LISTED]
    ]
    lines += _part(level, "Tasks it fails, worst first", ("task", "mean score", "solved", "why"), worst)
    if evidence.credit is not None:
        lines += _part(level, CREDIT, ("", ""), evidence.credit.figures)
        lines += [line for sentence in evidence.credit.advice for line in (plain(sentence), "")]
    recipe = [(key, shorten(value, MAX_REASON_CHARS)) for key, value in list_leaves(evidence.recipe or {})]
    lines += _part(level, "Recipe", ("", ""), recipe)
    origin = [(name, shorten(value, MAX_REASON_CHARS)) for name, value in provenance(evidence)]
    return lines + _part(level, "Where it came from", ("", ""), origin)


def _describe_faulty(evidence: Evidence, level: str) -> list[str]:
    """Success with and without the tasks known to be faulty, and these tasks; nothing if the suite has no list."""
    faulty = evidence.faulty
    if faulty is None:
        return []
    lines = [f"{level}# {FAULTY}", "", plain(describe_list(faulty)), ""]
    if faulty.tasks:
        lines += [*_table(RATE_HEADINGS, rate_rows(faulty)), *_table(TASK_HEADINGS, task_rows(faulty))]
    return lines


def _describe_trees(evidence: Evidence, level: str) -> list[str]:
    """Figures of trees, and pass@k over their leaves; nothing if nothing branched."""
    if evidence.trees is None:
        return []
    lines = [*_part(level, TREES, ("", ""), tree_rows(evidence.trees)), plain(TREES_NOTE), ""]
    if evidence.trees.pass_k:
        lines += _part(level, LEAVES.capitalize(), LEAVES_HEADINGS, leaf_rows(evidence.trees))
        lines += [plain(LEAVES_NOTE), ""]
    return lines


def _describe_user(evidence: Evidence, level: str) -> list[str]:
    """The audit of a user that a model played; nothing for another user."""
    audit = evidence.user_audit
    if audit is None:
        return [f"{level}# {PLAYED_USER}", "", NOT_AUDITED, ""] if was_played(evidence) else []
    lines = [f"{level}# {PLAYED_USER}", "", plain(describe_audit(audit)), ""]
    return lines + (_table(KIND_HEADINGS, kind_rows(audit)) if audit.kinds else [])


def _describe_held_out(evidence: Evidence) -> list[str]:
    """Held-out success of a training run after its last evaluation, a line for each split."""
    lines: list[str] = []
    for held in read_held_out(evidence.curves, evidence.heldout):
        last, first = held.last, held.first
        bounds = f" ({interval(last.ci95)})" if last.ci95 and not evidence.refuse_held_out(held) else ""
        since = f", {percent(first.success)} after iteration {first.iteration}" if first is not last else ""
        words = f"{held.split}: {describe_success(evidence, held)}{bounds} after iteration {last.iteration}{since}"
        lines += [f"**Held out, {plain(words)}**", ""]
        lines += [plain(refusal), ""] if (refusal := evidence.refuse_held_out(held)) else []
    return lines


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
