"""``report.html``: one page that stands alone. Says first what the run is worth, then where to look."""

from __future__ import annotations

import json

from gymcp.evaluators.metrics import Metrics, Rate
from gymcp.evaluators.report.html import Html, element, join, raw, table
from gymcp.evaluators.report.numbers import bar, interval, percent, seconds
from gymcp.evaluators.report.style import CSS
from gymcp.store import EpisodeRow, Run
from gymcp.types import Outcome

GATES = {"oracle": 1.0, "null": 0.0, "mutated": 0.0}
"""Agents whose score is known beforehand, as long as environment and harness are right."""

MAX_LISTED = 20
MAX_REASON = 600
"""Characters of a reason; the store has all of it."""

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


def render(run: Run, rows: list[EpisodeRow], summary: Metrics) -> str:
    """The page. Nothing in it is fetched and nothing in it runs; whatever a record says is text."""
    name = " · ".join(str(run.config[key]) for key in ("env", "agent") if key in run.config) or run.folder.name
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # the second lock on the door: even markup that slipped through could load and run nothing
        element("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        element("title", f"{name}: {percent(summary.overall.success)}"),
        element("style", raw(CSS)),
    )
    main = element(
        "main",
        element("h1", name),
        element("p", f"suite {run.config.get('suite', 'unnamed')} · started {run.created}", class_="soft"),
        _headline(summary.overall),
        _gate(run, rows),
        _facts(summary),
        _breakdown(summary),
        _pass_k(summary),
        _outcomes(summary),
        _failed(run, rows),
        _without_score(rows),
        _provenance(run),
        element("footer", f"gymcp {run.versions.get('gymcp', '')} · {run.folder}"),
    )
    return "<!doctype html>\n" + element("html", head, element("body", main), lang="en").text + "\n"


def _headline(overall: Rate) -> Html:
    return join(
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
            "Share of scored episodes with a full score",
            f"; interval: {overall.ci95.method}." if overall.ci95 else ".",
            class_="soft",
        ),
    )


def _gate(run: Run, rows: list[EpisodeRow]) -> Html:
    if (wanted := _gate_score(run)) is None:
        return join()
    expected = f"this agent should score {percent(wanted)} in every episode"
    scored = [row.score for row in rows if row.score is not None]
    if broken := sum(score != wanted for score in scored):
        return element("p", f"Gate broken: {expected}, and did not in {broken} of {len(scored)}.", class_="gate bad")
    if not scored:
        return element("p", f"Gate not tried: {expected}, but nothing was scored.", class_="gate warn")
    return element("p", f"Gate held: {expected}, and did in all {len(scored)} that were scored.", class_="gate good")


def _gate_score(run: Run) -> float | None:
    return GATES.get(str(run.config.get("agent", "")))


def _facts(summary: Metrics) -> Html:
    score = percent(summary.score.value)
    facts = [
        ("Mean score", f"{score} ({interval(summary.score.ci95)})" if summary.score.ci95 else score),
        ("Tool calls", f"{summary.tool_calls:,}"),
        ("Tool errors", f"{summary.tool_errors:,}"),
        ("Elapsed", seconds(summary.wall_s)),
        ("Episode time, summed", seconds(summary.episode_s)),
        *((name, f"{value:.3f}") for name, value in summary.components.items()),
    ]
    return element(
        "dl", *(element("div", element("dt", name), element("dd", value)) for name, value in facts), class_="facts"
    )


def _breakdown(summary: Metrics) -> Html:
    tables = []
    for axis, parts in summary.breakdowns.items():
        rows: list[tuple[Html | str, ...]] = [
            (value, percent(part.success), interval(part.ci95), bar(part), part.coverage)
            for value, part in parts.items()
        ]
        tables.append(_section(f"By {axis}", (axis, "#success", "#95 % interval", "", "coverage"), rows))
    return join(*tables)


def _pass_k(summary: Metrics) -> Html:
    rows: list[tuple[Html | str, ...]] = [
        (str(found.k), percent(found.at), percent(found.hat), str(found.tasks)) for found in summary.pass_k
    ]
    return _section(
        "Over trials", ("#k", "#pass@k: at least one of k", "#pass^k: all of k", "#tasks with k scored trials"), rows
    )


def _outcomes(summary: Metrics) -> Html:
    rows: list[tuple[Html | str, ...]] = [
        (element("code", str(outcome)), f"{count:,}", _MEANING[outcome]) for outcome, count in summary.outcomes.items()
    ]
    return _section("How episodes ended", ("outcome", "#episodes", "meaning"), rows)


def _failed(run: Run, rows: list[EpisodeRow]) -> Html:
    """Episodes to look at: those that failed, or in the run of a gate those that should have ended otherwise."""
    scored = sorted((row for row in rows if row.score is not None), key=lambda row: (row.score or 0.0, row.task))
    if (wanted := _gate_score(run)) is not None:
        return _episodes("Broke the gate", [row for row in scored if row.score != wanted])
    return _episodes("Failed, worst first", [row for row in scored if not row.success])


def _without_score(rows: list[EpisodeRow]) -> Html:
    return _episodes("Without a score", [row for row in rows if row.score is None])


def _episodes(title: str, rows: list[EpisodeRow]) -> Html:
    shown: list[tuple[Html | str, ...]] = [
        (
            element("code", row.task),
            str(row.trial),
            "–" if row.score is None else f"{row.score:.2f}",
            element("code", str(row.outcome)),
            str(row.steps),
            str(row.usage.tool_calls),
            element("pre", row.reason if len(row.reason) <= MAX_REASON else row.reason[:MAX_REASON] + " ..."),
        )
        for row in rows[:MAX_LISTED]
    ]
    more = f" ({MAX_LISTED} of {len(rows)})" if len(rows) > MAX_LISTED else ""
    return _section(f"{title}{more}", ("task", "#trial", "#score", "outcome", "#steps", "#tool calls", "why"), shown)


def _provenance(run: Run) -> Html:
    facts = {
        "git": run.git or "not in a repository",
        "seeds": ", ".join(map(str, run.seeds)) or "none recorded",
        **{f"version of {name}": version for name, version in run.versions.items()},
        **{key: value if isinstance(value, str) else json.dumps(value) for key, value in run.config.items()},
    }
    rows: list[tuple[Html | str, ...]] = [(name, element("pre", value)) for name, value in facts.items()]
    return _section("Where it came from", ("", ""), rows)


def _section(title: str, headings: tuple[str, ...], rows: list[tuple[Html | str, ...]]) -> Html:
    """A table under its title; nothing where there are no rows."""
    return element("section", element("h2", title), table(headings, rows)) if rows else join()
