"""Formatting of numbers, for the page and for ``summary.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from gymcp.evaluators.compare import Comparison
from gymcp.evaluators.metrics import Metrics, Rate
from gymcp.evaluators.percent import format_percent
from gymcp.evaluators.report.caveats.summary import caveats_object
from gymcp.evaluators.report.html import Html, element
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.statistics import Interval
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow, Run
from gymcp.types import Json

MAX_WORST = 50


def summary_object(run: Run, rows: list[EpisodeRow], summary: Metrics) -> dict[str, Json]:
    """Content of ``summary.json`` and of ``--json``. `success` and `ci95` are None if nothing was scored."""
    return {
        "env": run.config.get("env", rows[0].env if rows else ""),
        "suite": run.config.get("suite", ""),
        "agent": run.config.get("agent", ""),
        "episodes": summary.overall.episodes,
        "scored": summary.overall.scored,
        "success": summary.overall.success,
        "ci95": _bounds(summary.overall.ci95),
        "outcomes": {str(outcome): count for outcome, count in summary.outcomes.items()},
        "tool_calls": summary.tool_calls,
        "attempts": summary.attempts,
        "wall_s": round(summary.wall_s, 3),
        "run": str(run.folder),
        "breakdown": [
            {
                "axis": axis,
                "tag": value,
                "episodes": part.episodes,
                "scored": part.scored,
                "success": part.success,
                "ci95": _bounds(part.ci95),
            }
            for axis, parts in summary.breakdowns.items()
            for value, part in parts.items()
        ],
        "components": dict(summary.components),
        "pass_k": [{"k": each.k, "at": each.at, "hat": each.hat, "tasks": each.tasks} for each in summary.pass_k],
        "noise_floor": summary.noise_floor,
        "effort": {
            name: {"mean": each.mean.value, "ci95": _bounds(each.mean.ci95), "per_pass": each.per_pass}
            for name, each in summary.effort.items()
        },
        "calls": None if summary.calls is None else asdict(summary.calls),
        "radar": None
        if summary.radar is None
        else {name: each["value"] if isinstance(each, dict) else each for name, each in asdict(summary.radar).items()},
        "latency": _latencies(summary),
        "tokens_per_s": _two_digits(summary.tokens_per_s),
        "coverage": summary.overall.coverage,
        "lost": _first_endings(row for row in rows if row.score is None),
        "agent_errors": _first_endings(row for row in rows if row.outcome is Outcome.AGENT_ERROR),
        "prompt_tokens": summary.spent.prompt_tokens,
        "completion_tokens": summary.spent.completion_tokens,
        "cost": round(summary.spent.cost, 6),
        "tools": {name: _round_all(figures) for name, figures in summary.spent.tools.items()},
        "models": {name: _round_all(figures) for name, figures in summary.spent.models.items()},
        "seconds": _round_all(summary.times.seconds),
        "utilisation": {
            **_round_all({f"{name}_share": value for name, value in summary.times.share.items()}),
            "policy_requests": _two_digits(summary.times.policy_requests),
            "tool_calls": _two_digits(summary.times.tool_calls),
        },
    }


def _latencies(summary: Metrics) -> dict[str, Json]:
    """Quantiles by what was measured; None if nothing was."""
    measured = {
        "model": summary.model_latency,
        "request": summary.request_latency,
        "first_token": summary.first_token_latency,
        "tool": summary.tool_latency,
    }
    return {name: None if each is None else asdict(each) for name, each in measured.items()}


def summary_of(evidence: Evidence) -> dict[str, Json]:
    """The summary of a run with what its figures rest on."""
    return {**summary_object(evidence.run, evidence.rows, evidence.metrics), **caveats_object(evidence)}


def _round_all(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in figures.items()}


def _two_digits(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _first_endings(rows: Iterable[EpisodeRow]) -> dict[str, str]:
    """First episode, and its reason, for each outcome; latest attempts only."""
    first: dict[str, str] = {}
    for row in rows:
        if row.latest:
            first.setdefault(str(row.outcome), f"{row.task} trial {row.trial}: {row.reason}")
    return first


def percent(share: float | None) -> str:
    """ "81.2 %"; an en dash for None. Only a share of exactly 1 is 100 %, and only one of exactly 0 is 0 %."""
    if share is not None and 0 < share < 0.0005:
        return "< 0.1 %"
    if share is not None and 0.9995 <= share < 1:
        return "> 99.9 %"
    return format_percent(share)


def interval(bounds: Interval | None) -> str:
    """ "78.0 to 84.1 %"; empty for None."""
    return "" if bounds is None else f"{100 * bounds.low:.1f} to {100 * bounds.high:.1f} %"


def seconds(value: float) -> str:
    """A duration for people: "0.31 s", "42.0 s", "3 min 20 s", "2 h 05 min"."""
    if value < 1:
        return f"{value:.2f} s"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def duration(value: float) -> str:
    """The time of one answer: "0.8 ms", "42 ms", "1.25 s", and then as `seconds` has it."""
    if value < 1:
        return f"{1000 * value:.1f} ms" if value < 0.01 else f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 10 else seconds(value)


def bar(rate: Rate) -> Html:
    """Line from 0 to 100 % with the interval as a band and the mean as a mark; empty if nothing was scored."""
    if rate.success is None or rate.ci95 is None:
        return element("span")
    return interval_bar(rate.success, rate.ci95)


def interval_bar(success: float, ci95: Interval) -> Html:
    """The line of `bar` for a share and its interval."""
    low, high, mean = (100 * value for value in (ci95.low, ci95.high, success))
    return element(
        "svg",
        element("rect", class_="track", x="0", y="6", width="100", height="2"),
        element("rect", class_="band", x=f"{low:.2f}", y="3", width=f"{max(high - low, 0.5):.2f}", height="8"),
        element("rect", class_="mean", x=f"{min(max(mean - 0.6, 0), 98.8):.2f}", y="1", width="1.2", height="12"),
        class_="interval",
        viewBox="0 0 100 14",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{percent(success)}, interval {interval(ci95)}",
    )


def _bounds(bounds: Interval | None) -> list[float] | None:
    return None if bounds is None else [bounds.low, bounds.high]


def report_object(evidence: Evidence) -> dict[str, Json]:
    """One run of a report as JSON: its summary, gates, worst tasks, learning curves and provenance."""
    run = evidence.run
    return {
        "name": evidence.name,
        **summary_of(evidence),
        "gates": [
            {
                "agent": gate.agent,
                "wanted": gate.wanted,
                "state": gate.state,
                "scored": gate.scored,
                "broken": gate.broken,
                "tasks": gate.tasks,
                "shared": gate.shared,
                "run": None if gate.folder is None else str(gate.folder),
            }
            for gate in evidence.gates
        ],
        "worst": [
            {
                "task": each.task,
                "mean": each.mean,
                "passed": each.passed,
                "trials": each.trials,
                "trajectory": each.worst.id,
                "reason": each.worst.reason,
            }
            for each in evidence.worst[:MAX_WORST]
        ],
        "flake": {task: index for task, index in evidence.metrics.flake.items() if index},
        "curves": list(evidence.curves),
        "judge": evidence.judge,
        "credit": None
        if evidence.credit is None
        else {"advice": list(evidence.credit.advice), "figures": dict(evidence.credit.figures)},
        "problems": list(evidence.problems),
        "provenance": {
            "created": run.created,
            "git": run.git,
            "seeds": list(run.seeds),
            "versions": dict(run.versions),
            "config": dict(run.config),
        },
    }


def comparison_object(comparison: Comparison) -> dict[str, Json]:
    """The comparison of runs as JSON."""
    return {
        "metric": comparison.metric.name,
        "verdict": comparison.verdict,
        "pairs": [asdict(pair) for pair in comparison.pairs],
    }
