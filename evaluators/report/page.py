"""``report.html`` of one run. It shows the score and the weak spots first, then the evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from gymcp.evaluators.metrics import Metrics, Rate
from gymcp.evaluators.report.charts import RADAR, learning_curves, radar, time_split
from gymcp.evaluators.report.formatting import bar, interval, percent, seconds
from gymcp.evaluators.report.gates import GATES
from gymcp.evaluators.report.html import Html, element, join, table
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.report.sections import (
    MAX_LISTED,
    MAX_REASON,
    document,
    effort_rows,
    gates,
    judge_rows,
    problems,
    provenance,
    rows_section,
    section,
    shorten,
    transcripts,
    worst,
)
from gymcp.store import EpisodeRow
from gymcp.types import Outcome

_PARTICULAR = re.compile(
    r"""\{.*?\.\.\. \(\d+ characters\)|\{.*\}|\[.*\]|"[^"]*"|'[^']*'|[\w-]*\d[\w./-]*|\w+(?:[./]\w+)+"""
)
MAX_WEAK = 8
"""Most parts of the first breakdown, lowest first, on the first screen."""

_MEANING = {
    Outcome.SCORED: "ended by itself, graded",
    Outcome.BUDGET_EXHAUSTED: "ran out of steps, tokens or time of its own; graded as it stood",
    Outcome.AGENT_ERROR: "the agent gave nothing usable to the end; counts as 0",
    Outcome.ENV_INFRA: "the environment broke; no score, run again on resume",
    Outcome.POLICY_INFRA: "the policy could not be reached; no score, run again on resume",
    Outcome.TIMEOUT: "the harness ran out of time; no score, run again on resume",
    Outcome.GRADER_ERROR: "the grader broke; no score, grade again",
    Outcome.CANCELLED: "interrupted; no score, run again on resume",
}


def render(evidence: Evidence) -> str:
    """Page of one run."""
    run, metrics = evidence.run, evidence.metrics
    started = f" · started {run.created}" if run.created else ""
    return document(
        f"{evidence.name}: {percent(metrics.overall.success)}",
        element("h1", evidence.name),
        element("p", f"suite {run.config.get('suite', 'unnamed')}{started}", class_="soft"),
        problems(evidence.problems),
        element(
            "div",
            element("div", *_headline(evidence), _facts(metrics)),
            _gates(evidence),
            class_="first",
        ),
        element("div", _weak(metrics), _reasons(evidence), class_="pair"),
        _radar(evidence),
        section("Learning curve", learning_curves(evidence.curves)) if evidence.curves else join(),
        *(_breakdown(axis, parts) for axis, parts in metrics.breakdowns.items()),
        _effort(metrics),
        _calls(metrics),
        section(
            "Where the time went",
            time_split(metrics.times),
            note="Of all attempts, lost ones too, summed over episodes that ran side by side.",
        ),
        rows_section("Judge", ("", ""), list(judge_rows(evidence))),
        _pass_k(metrics),
        _flakes(metrics),
        _outcomes(metrics),
        _broke_the_gate(evidence) if _is_gate(evidence) else worst(evidence),
        _without_score(evidence.rows),
        join() if _is_gate(evidence) else transcripts(evidence),
        rows_section(
            "Where it came from",
            ("", ""),
            [(name, element("pre", shorten(value, 4000))) for name, value in provenance(evidence)],
        ),
        element("footer", f"gymcp {run.versions.get('gymcp', '')} · {run.folder}"),
    )


def _is_gate(evidence: Evidence) -> bool:
    return str(evidence.run.config.get("agent", "")) in GATES


def _headline(evidence: Evidence) -> tuple[Html, ...]:
    overall = evidence.metrics.overall
    practice = " over all of its practice; for what it has learnt see the curve" if evidence.curves else ""
    return (
        element(
            "div",
            element("strong", percent(overall.success)),
            element("span", f"95 % interval {interval(overall.ci95)}" if overall.ci95 else "nothing was scored"),
            bar(overall),
            element("span", overall.coverage, class_="good" if overall.scored == overall.episodes else "warn"),
            class_="headline",
        ),
        element(
            "p",
            f"Share of scored episodes with a full score{practice}",
            f"; interval: {overall.ci95.method}." if overall.ci95 else ".",
            class_="soft",
        ),
    )


def _gates(evidence: Evidence) -> Html:
    if evidence.curves:  # training episodes are of no suite
        return join()
    return element("div", _own_gate(evidence), gates(evidence.gates, str(evidence.run.config.get("source", ""))))


def _own_gate(evidence: Evidence) -> Html:
    own = next((gate for gate in evidence.gates if gate.agent == evidence.run.config.get("agent")), None)
    if own is None:
        return join()
    expected = f"this agent should score {percent(own.wanted)} in every episode"
    if own.broken:
        words = f"Gate broken: {expected}, and did not in {own.broken} of {own.scored}."
        return element("p", words, class_="gate bad")
    if not own.scored:
        return element("p", f"Gate not tried: {expected}, but nothing was scored.", class_="gate warn")
    return element("p", f"Gate held: {expected}, and did in all {own.scored} that were scored.", class_="gate good")


def _facts(metrics: Metrics) -> Html:
    score = percent(metrics.score.value)
    facts = [
        ("Mean score", f"{score} ({interval(metrics.score.ci95)})" if metrics.score.ci95 else score),
        ("Tool calls", f"{metrics.tool_calls:,}"),
        ("Tool errors", f"{metrics.tool_errors:,}"),
        *([("Attempts", f"{metrics.attempts:,}")] if metrics.attempts > metrics.overall.episodes else []),
        ("Elapsed", seconds(metrics.wall_s)),
        ("Episode time, summed", seconds(metrics.episode_s)),
        *((name, f"{value:.3f}") for name, value in metrics.components.items()),
    ]
    return element(
        "dl", *(element("div", element("dt", name), element("dd", value)) for name, value in facts), class_="facts"
    )


def _weak(metrics: Metrics) -> Html:
    """The lowest parts of the first axis."""
    if not metrics.breakdowns or metrics.overall.success in (None, 0.0, 1.0):
        return join()
    axis, parts = next(iter(metrics.breakdowns.items()))
    scored = [(value, part) for value, part in parts.items() if part.success is not None]
    lowest = sorted(scored, key=lambda each: (each[1].success or 0.0, -each[1].scored))[:MAX_WEAK]
    lines = [
        element("div", element("span", value), bar(part), element("b", percent(part.success)), class_="weak")
        for value, part in lowest
    ]
    more = f", lowest {len(lowest)} of {len(scored)}" if len(lowest) < len(scored) else ""
    return section(f"Where it fails: by {axis}{more}", *lines)


def _reasons(evidence: Evidence) -> Html:
    """Reasons of the failures; those that differ only in names and numbers are counted together."""
    if _is_gate(evidence):
        return join()
    kinds = [reason_kind(row.reason) for row in evidence.rows if row.success is False]
    rows: list[tuple[Html | str, ...]] = [(kind, f"{count:,}") for kind, count in Counter(kinds).most_common(MAX_WEAK)]
    title = f"Why it fails: {len(kinds):,} of {evidence.metrics.overall.scored:,}"
    return rows_section(title, ("as the grader says", "#episodes"), rows)


def reason_kind(reason: str) -> str:
    """The reason without what is particular to a task: quoted texts, objects, numbers, dotted paths."""
    kind = _PARTICULAR.sub("…", " ".join(reason[:MAX_REASON].split()))
    return shorten(kind or "no reason given", 140)


def _radar(evidence: Evidence) -> Html:
    dimensions = evidence.metrics.radar
    if dimensions is None:
        return join()
    lines: list[tuple[Html | str, ...]] = [
        (name, percent(getattr(dimensions, name).value), interval(getattr(dimensions, name).ci95)) for name in RADAR
    ]
    lines.append(
        ("until the first error", percent(dimensions.first_error.value), interval(dimensions.first_error.ci95))
    )
    lines.append(("needed tools on offer", percent(dimensions.offered.value), interval(dimensions.offered.ci95)))
    return section(
        "Beside the gold calls",
        element(
            "div", radar([(evidence.name, dimensions)]), table(("", "#mean", "#95 % interval"), lines), class_="drawn"
        ),
        note="The five dimensions of MCP-RADAR; efficiency and speed are those of successes.",
    )


def _breakdown(axis: str, parts: Mapping[str, Rate]) -> Html:
    rows: list[tuple[Html | str, ...]] = [
        (value, percent(part.success), interval(part.ci95), bar(part), part.coverage) for value, part in parts.items()
    ]
    return rows_section(f"By {axis}", (axis, "#success", "#95 % interval", "", "coverage"), rows)


def _effort(metrics: Metrics) -> Html:
    return rows_section(
        "What it took",
        ("", "#mean of an episode", "#95 % interval", "#for each success"),
        effort_rows(metrics),
        "Of scored episodes. For each success: all that was spent over the number of successes (cost of a pass).",
    )


def _calls(metrics: Metrics) -> Html:
    rates = metrics.calls
    if rates is None or not rates.made:
        return join()
    rows: list[tuple[Html | str, ...]] = [
        ("failed", percent(rates.error_rate), "answered with an error, invalid ones included"),
        ("invalid", percent(rates.invalid_rate), "could not succeed in any world: no such tool, wrong arguments"),
        ("redundant", percent(rates.redundant_rate), "made before with the same answer, the world unchanged since"),
    ]
    return rows_section(f"Tool calls: {rates.made:,}", ("", "#share", "meaning"), rows)


def _pass_k(metrics: Metrics) -> Html:
    rows: list[tuple[Html | str, ...]] = [
        (str(entry.k), percent(entry.at), percent(entry.hat), str(entry.tasks)) for entry in metrics.pass_k
    ]
    note = ""
    if metrics.noise_floor is not None:
        floor = f"{100 * metrics.noise_floor:.1f} points"
        note = f"Noise floor: two runs of this policy differ by up to {floor} by themselves."
    return rows_section(
        "Over trials",
        ("#k", "#pass@k: at least one of k", "#pass^k: all of k", "#tasks with k scored trials"),
        rows,
        note,
    )


def _flakes(metrics: Metrics) -> Html:
    flaky = sorted(((task, index) for task, index in metrics.flake.items() if index > 0), key=lambda each: -each[1])
    rows: list[tuple[Html | str, ...]] = [
        (element("code", shorten(task, 200)), f"{index:.2f}") for task, index in flaky[:MAX_LISTED]
    ]
    return rows_section(
        f"Tasks that flake: {len(flaky)} of {len(metrics.flake)}",
        ("task", "#chance that two trials differ"),
        rows,
    )


def _outcomes(metrics: Metrics) -> Html:
    rows: list[tuple[Html | str, ...]] = [
        (element("code", str(outcome)), f"{count:,}", _MEANING[outcome]) for outcome, count in metrics.outcomes.items()
    ]
    return rows_section("How episodes ended", ("outcome", "#episodes", "meaning"), rows)


def _broke_the_gate(evidence: Evidence) -> Html:
    required = GATES[str(evidence.run.config["agent"])]
    return _episodes("Broke the gate", [row for row in evidence.rows if row.score not in (None, required)])


def _without_score(rows: list[EpisodeRow]) -> Html:
    return _episodes("Without a score", [row for row in rows if row.score is None])


def _episodes(title: str, rows: list[EpisodeRow]) -> Html:
    lines: list[tuple[Html | str, ...]] = [
        (
            element("code", shorten(row.task, 200)),
            str(row.trial),
            "–" if row.score is None else f"{row.score:.2f}",
            element("code", str(row.outcome)),
            str(row.steps),
            element("pre", shorten(row.reason, MAX_REASON)),
        )
        for row in rows[:MAX_LISTED]
    ]
    more = f" ({MAX_LISTED} of {len(rows)})" if len(rows) > MAX_LISTED else ""
    return rows_section(f"{title}{more}", ("task", "#trial", "#score", "outcome", "#steps", "why"), lines)
