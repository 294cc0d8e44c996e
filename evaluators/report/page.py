"""``report.html`` of one run. It shows the score and the weak spots first, then the evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gymcp.evaluators.metrics import Metrics, Rate
from gymcp.evaluators.metrics.reasons import group_reasons
from gymcp.evaluators.names import label_of_part
from gymcp.evaluators.report.caveats.credit import credit_section
from gymcp.evaluators.report.caveats.denominators import (
    DENOMINATORS,
    TRIALS_HEADINGS,
    denominator_rows,
    headline,
    trials_note,
    trials_rows,
)
from gymcp.evaluators.report.caveats.faulty import faulty_section
from gymcp.evaluators.report.caveats.played_user import user_section
from gymcp.evaluators.report.caveats.trees import trees_section
from gymcp.evaluators.report.charts import RADAR, radar, time_split
from gymcp.evaluators.report.formatting import bar, duration, interval, percent, seconds
from gymcp.evaluators.report.gates import GATES
from gymcp.evaluators.report.html import Html, element, join, name_code, table
from gymcp.evaluators.report.links import open_in_viewer, query_of_reason
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.report.sections import (
    MAX_LISTED,
    MAX_REASON_CHARS,
    amount,
    document,
    effort_rows,
    facts_list,
    gates,
    judge_rows,
    outcome_name,
    problems,
    provenance,
    rows_section,
    section,
    transcripts,
    worst,
)
from gymcp.evaluators.statistics import Latency
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow
from gymcp.visible_text import shorten

MAX_NAMED = 60
"""Most tools or models in a table."""
MAX_WEAK = 8
"""Most parts of the first breakdown, lowest first, on the first screen."""

_MEANING = {
    Outcome.SCORED: "ended by itself, graded",
    Outcome.BUDGET_EXHAUSTED: "ran out of steps, tokens or time of its own; graded as it stood",
    Outcome.AGENT_ERROR: "the agent raised, or gave nothing usable to the end; counts as 0",
    Outcome.ENV_INFRA: "the environment broke; no score, run again on resume",
    Outcome.POLICY_INFRA: "the policy could not be reached; no score, run again on resume",
    Outcome.TIMEOUT: "the harness ran out of time; no score, run again on resume",
    Outcome.GRADER_ERROR: "the grader broke; no score, grade again",
    Outcome.CANCELLED: "interrupted; no score, run again on resume",
}


def render(evidence: Evidence) -> str:
    """Page of one run."""
    metrics = evidence.metrics
    return document(
        f"{evidence.name}: {headline(evidence)}",
        element("h1", evidence.name),
        suite_line(evidence),
        problems(evidence.problems),
        element(
            "div",
            element("div", *_headline(evidence), _facts(metrics)),
            element("div", _own_gate(evidence), gates(evidence.gates, evidence.run)),
            class_="first",
        ),
        element("div", weak(metrics), reasons(evidence), class_="pair"),
        denominators(evidence),
        faulty_section(evidence),
        _radar(evidence),
        *(breakdown(axis, parts) for axis, parts in metrics.breakdowns.items()),
        effort(metrics),
        calls(metrics),
        time_section(metrics),
        by_name("Tools", metrics.spent.tools),
        by_name("Models", metrics.spent.models),
        rows_section("Judge", ("", ""), list(judge_rows(evidence))),
        _pass_k(metrics),
        _flakes(metrics),
        trees_section(evidence),
        outcomes(metrics),
        user_section(evidence),
        _broke_the_gate(evidence) if is_gate(evidence) else worst(evidence),
        without_score(evidence.rows),
        credit_section(evidence),
        join() if is_gate(evidence) else transcripts(evidence),
        origin(evidence),
    )


def origin(evidence: Evidence) -> Html:
    """Origin of the figures: versions, digests, settings; and the footer of the page."""
    run = evidence.run
    rows = [(name, element("pre", shorten(value, 4000))) for name, value in provenance(evidence)]
    return join(
        rows_section("Where it came from", ("", ""), list(rows), fold=True),
        element("footer", f"gymcp {run.versions.get('gymcp', '')} · {run.folder}"),
    )


def suite_line(evidence: Evidence) -> Html:
    """The suite with its version, and when the run was started."""
    config = evidence.run.config
    suite = " ".join(str(config[key]) for key in ("suite", "suite_version") if config.get(key))
    # runs of training that were recorded before suites were, name the environment alone
    named = f"suite {suite}" if suite else f"tasks of {config['env']}" if config.get("env") else "suite not recorded"
    created = re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d\+00:00$", r"\1 \2 UTC", evidence.run.created)
    started = f" · started {created}" if created else ""
    return element("p", f"{named}{started}", class_="soft")


def is_gate(evidence: Evidence) -> bool:
    """True if the run's agent has a score that is known beforehand."""
    return str(evidence.run.config.get("agent", "")) in GATES


def denominators(evidence: Evidence) -> Html:
    """Bounds of the success, tasks that are lost, and episodes that were played again."""
    return rows_section(DENOMINATORS, ("", ""), list(denominator_rows(evidence)))


def _headline(evidence: Evidence) -> tuple[Html, ...]:
    overall = evidence.metrics.overall
    if evidence.refusal:
        return (
            element(
                "div",
                element("strong", headline(evidence)),
                element("span", "no headline figure: too few episodes have a score"),
                element("span", overall.coverage, class_="warn"),
                class_="headline",
            ),
            element("p", f"{evidence.refusal}.", class_="notice"),
        )
    return (
        element(
            "div",
            element("strong", headline(evidence)),
            element("span", f"95 % interval {interval(overall.ci95)}" if overall.ci95 else "nothing was scored"),
            bar(overall),
            element("span", overall.coverage, class_="good" if overall.scored == overall.episodes else "warn"),
            *_judge_words(evidence),
            class_="headline",
        ),
        element(
            "p",
            "Share of scored episodes with a full score",
            f"; interval: {overall.ci95.method}." if overall.ci95 else ".",
            class_="soft",
        ),
    )


def _judge_words(evidence: Evidence) -> tuple[Html, ...]:
    """Coverage of the judge that the environment's grader asks."""
    judge = (evidence.judge or {}).get("grader")
    if judge is None:
        return ()
    return (element("span", str(judge["words"]), class_="good" if judge["judged"] == judge["episodes"] else "warn"),)


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
    return facts_list(facts)


def weak(metrics: Metrics) -> Html:
    """The lowest parts of the first axis."""
    if not metrics.breakdowns or metrics.overall.success in (None, 0.0, 1.0):
        return join()
    axis, parts = next(iter(metrics.breakdowns.items()))
    scored = [(value, part) for value, part in parts.items() if part.success is not None]
    lowest = sorted(scored, key=lambda each: (each[1].success or 0.0, -each[1].scored))[:MAX_WEAK]
    lines = [
        element(
            "div",
            element("span", label_of_part(axis, value)),
            bar(part),
            element("b", percent(part.success)),
            class_="weak",
        )
        for value, part in lowest
    ]
    more = f", lowest {len(lowest)} of {len(scored)}" if len(lowest) < len(scored) else ""
    return section(f"Where it fails: by {axis}{more}", *lines)


def reasons(evidence: Evidence) -> Html:
    """Reasons of the failures by kind, most frequent first, each with one example."""
    if is_gate(evidence):
        return join()
    failed = [row for row in evidence.rows if row.success is False]
    rows: list[tuple[Html | str, ...]] = [
        (
            join(
                each.kind,
                element("span", f"{shorten(each.task, 60)}: {each.example}", class_="example"),
                open_in_viewer(evidence, query_of_reason(each.kind)),
            ),
            f"{each.episodes:,}",
        )
        for each in group_reasons([(row.task, row.reason) for row in failed])[:MAX_WEAK]
    ]
    title = f"Why it fails: {len(failed):,} of {evidence.metrics.overall.scored:,}"
    return rows_section(title, ("as the grader says, with one example", "#episodes"), rows)


def _radar(evidence: Evidence) -> Html:
    dimensions = evidence.metrics.radar
    if dimensions is None:
        return join()
    lines: list[tuple[Html | str, ...]] = [
        (name, percent(getattr(dimensions, name).value), interval(getattr(dimensions, name).ci95)) for name in RADAR
    ]
    tasks = len({row.task for row in evidence.rows if row.score is not None})
    lines.append(
        ("until the first error", percent(dimensions.first_error.value), interval(dimensions.first_error.ci95))
    )
    lines.append(("needed tools on offer", percent(dimensions.offered.value), interval(dimensions.offered.ci95)))
    return section(
        "Beside the gold calls",
        element(
            "div", radar([(evidence.name, dimensions)]), table(("", "#mean", "#95 % interval"), lines), class_="drawn"
        ),
        note=radar_note(dimensions.tasks, tasks),
    )


def radar_note(with_gold: int, tasks: int) -> str:
    """The tasks that the radar is about, and why its accuracy may differ from the success."""
    scope = f"Of the {with_gold} tasks with gold calls"
    if with_gold < tasks:
        scope += f", out of {tasks}; so accuracy is not the success above, which is of all {tasks}"
    return f"{scope}. The five dimensions of MCP-RADAR; efficiency and speed are those of successes."


def breakdown(axis: str, parts: Mapping[str, Rate], *, of: str = "") -> Html:
    """Success by the values of one axis; `of` says of which episodes if that is not plain."""
    rows: list[tuple[Html | str, ...]] = [
        (label_of_part(axis, value), percent(part.success), interval(part.ci95), bar(part), part.coverage)
        for value, part in parts.items()
    ]
    title = f"{of} by {axis}" if of else f"By {axis}"
    return rows_section(title, (axis, "#success", "#95 % interval", "", "coverage"), rows)


def effort(metrics: Metrics) -> Html:
    """Steps, calls, tokens, seconds and money of an episode, and of a success."""
    return rows_section(
        "What it took",
        ("", "#mean of an episode", "#95 % interval", "#for each success"),
        effort_rows(metrics),
        "Of scored episodes. For each success: all that was spent over the number of successes (cost of a pass).",
    )


def calls(metrics: Metrics) -> Html:
    """Shares of calls that failed, could not succeed, or were made before."""
    rates = metrics.calls
    if rates is None or not rates.made:
        return join()
    rows: list[tuple[Html | str, ...]] = [
        ("failed", percent(rates.error_rate), "answered with an error, invalid ones included"),
        ("invalid", percent(rates.invalid_rate), "could not succeed in any world: no such tool, wrong arguments"),
        ("redundant", percent(rates.redundant_rate), "made before with the same answer, the world unchanged since"),
    ]
    return rows_section(f"Tool calls: {rates.made:,}", ("", "#share", "meaning"), rows)


def time_section(metrics: Metrics) -> Html:
    """Time of the episodes by kind, and how long single answers of model and tools took."""
    latencies = (
        ("model, per decision", metrics.model_latency),
        ("model, per request, without retries", metrics.request_latency),
        ("model, to the first token", metrics.first_token_latency),
        ("tool, per call", metrics.tool_latency),
    )
    rows = [(name, f"{each.count:,}", *latency_cells(each)) for name, each in latencies if each is not None]
    speed = metrics.tokens_per_s
    wrote = f" The model wrote {speed:.3g} tokens per second of its requests." if speed else ""
    return section(
        "Where the time went",
        time_split(metrics.times),
        table(("latency", "#measured", "#median", "#95th percentile"), list(rows)) if rows else join(),
        note=f"Of all attempts, lost ones too, summed over episodes that ran side by side.{wrote}",
    )


def latency_cells(latency: Latency | None) -> tuple[str, str]:
    """Median and 95th percentile in words; en dashes for None."""
    return ("–", "–") if latency is None else (duration(latency.p50_s), duration(latency.p95_s))


def by_name(title: str, figures: Mapping[str, Mapping[str, float]]) -> Html:
    """Figures of each tool or model, most calls first, summed over all attempts; without the columns that are all 0."""
    names = dict.fromkeys(name for of_each in figures.values() for name, value in of_each.items() if value)
    rows: list[tuple[Html | str, ...]] = [
        (name_code(name), *(amount(of_each.get(column, 0.0)) for column in names))
        for name, of_each in sorted(figures.items(), key=lambda each: -each[1].get("calls", 0.0))[:MAX_NAMED]
    ]
    more = f", most calls first ({MAX_NAMED} of {len(figures)})" if len(figures) > MAX_NAMED else ""
    headings = ("", *(f"#{shorten(name, 40).replace('_', ' ')}" for name in names))
    return rows_section(f"{title}{more}", headings, rows, fold=True)


def _pass_k(metrics: Metrics) -> Html:
    note = f"At least one of k trials succeeds, and all of them do. {trials_note()}"
    if metrics.noise_floor is not None:
        floor = f"{100 * metrics.noise_floor:.1f} points"
        note += f" Noise floor: two runs of this policy differ by up to {floor} by themselves."
    return rows_section(
        "Over trials",
        tuple(f"#{heading}" for heading in TRIALS_HEADINGS),
        list(trials_rows(metrics)),
        note,
    )


def _flakes(metrics: Metrics) -> Html:
    flaky = sorted(((task, index) for task, index in metrics.flake.items() if index > 0), key=lambda each: -each[1])
    rows: list[tuple[Html | str, ...]] = [(name_code(task), f"{index:.2f}") for task, index in flaky[:MAX_LISTED]]
    return rows_section(
        f"Tasks that flake: {len(flaky)} of {len(metrics.flake)}",
        ("task", "#chance that two trials differ"),
        rows,
    )


def outcomes(metrics: Metrics) -> Html:
    """Number of episodes by the way they ended."""
    rows: list[tuple[Html | str, ...]] = [
        (outcome_name(outcome), f"{count:,}", _MEANING[outcome]) for outcome, count in metrics.outcomes.items()
    ]
    return rows_section("How episodes ended", ("outcome", "#episodes", "meaning"), rows)


def _broke_the_gate(evidence: Evidence) -> Html:
    required = GATES[str(evidence.run.config["agent"])]
    return _episodes("Broke the gate", [row for row in evidence.rows if row.score not in (None, required)])


def without_score(rows: list[EpisodeRow]) -> Html:
    """Episodes that have no score, with the reason."""
    return _episodes("Without a score", [row for row in rows if row.score is None])


def _episodes(title: str, rows: list[EpisodeRow]) -> Html:
    lines: list[tuple[Html | str, ...]] = [
        (
            name_code(row.task),
            str(row.trial),
            "–" if row.score is None else f"{row.score:.2f}",
            outcome_name(row.outcome),
            str(row.steps),
            element("pre", shorten(row.reason, MAX_REASON_CHARS)),
        )
        for row in rows[:MAX_LISTED]
    ]
    more = f" ({MAX_LISTED} of {len(rows)})" if len(rows) > MAX_LISTED else ""
    return rows_section(f"{title}{more}", ("task", "#trial", "#score", "outcome", "#steps", ">why"), lines, fold=True)
