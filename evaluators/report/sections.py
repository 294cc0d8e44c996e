"""Sections that the reports of one run and of several share."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from gymcp.evaluators.metrics import COST, Effort, Metrics
from gymcp.evaluators.report.formatting import percent
from gymcp.evaluators.report.gates import Gate, gate_command
from gymcp.evaluators.report.html import Html, element, fold_if_narrow, join, keep_whole, name_code, raw, table
from gymcp.evaluators.report.links import open_in_viewer, query_of_task
from gymcp.evaluators.report.run_data import RECIPE, WORST_TASKS, Evidence, TaskFigures
from gymcp.evaluators.transcript import (
    AnswerEvent,
    CallEvent,
    Event,
    MessageEvent,
    ResultEvent,
    UserActEvent,
    events,
)
from gymcp.outcome import Outcome
from gymcp.store import Run
from gymcp.types import Json, ToolCall, ToolResult, Trajectory
from gymcp.visible_text import shorten

_STYLE = Path(__file__).with_name("style.css")
MAX_REASON_CHARS = 600
"""Most characters of a reason on the page; the store has all of it."""
MAX_TEXT_CHARS = 2_000
"""Most characters of one text in a transcript."""
MAX_TRANSCRIPT_CHARS = 30_000
MAX_LISTED = 20
MAX_OPEN_ROWS = 6
"""Most rows of a table of details that a narrow screen shows without being asked."""
MAX_DEPTH = 5
"""Levels of a nested config that get dotted keys; what lies deeper is shown as JSON."""

_GATE_WORDS = {
    "held": ("✓", "good", "held in all {scored}"),
    "broken": ("✗", "bad", "broken in {broken} of {scored}"),
    "not tried": ("–", "warn", "nothing was scored"),
    "other tasks": ("–", "warn", "its run beside this one has none of the {tasks} tasks"),
    "not run": ("–", "soft", "no run of it beside this one"),
}


def document(title: str, *body: Html) -> str:
    """The page. It fetches nothing and runs nothing; everything from a record is text."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # second line of defence: even markup that slipped through could load and run nothing
        element("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        element("title", title),
        element("style", raw(_STYLE.read_text())),
    )
    return "<!doctype html>\n" + element("html", head, element("body", element("main", *body)), lang="en").text + "\n"


def section(title: str, *children: Html | str, note: str = "") -> Html:
    """A titled section; empty if it has no child."""
    present = [child for child in children if child if not isinstance(child, Html) or child.text]
    about = element("p", note, class_="soft") if note else join()
    return element("section", element("h2", title), about, *present) if present else join()


def rows_section(
    title: str, headings: tuple[str, ...], rows: Sequence[tuple[Html | str, ...]], note: str = "", *, fold: bool = False
) -> Html:
    """A titled table; empty without rows. `fold`: a narrow screen shows more than `MAX_OPEN_ROWS` only if asked to."""
    if not rows:
        return join()
    shown = table(headings, list(rows))
    is_folded = fold and len(rows) > MAX_OPEN_ROWS
    return section(title, fold_if_narrow(f"show {len(rows)} rows", shown) if is_folded else shown, note=note)


def problems(notices: Sequence[str]) -> Html:
    """Notices of what could not be read or compared."""
    return join(*(element("p", each, class_="notice") for each in notices))


def outcome_name(outcome: Outcome) -> Html:
    """Name of an outcome, which no line break may cut."""
    return element("code", str(outcome), class_="word")


def gates(of_suite: Sequence[Gate], run: Run, *, folded: bool = False) -> Html:
    """The suite's gates, one line each, and the commands that play those that say nothing of the run's tasks.

    `folded`: hide the commands until they are asked for.
    """
    lines = []
    for gate in of_suite:
        mark, kind, words = _GATE_WORDS[gate.state]
        result = words.format(scored=gate.scored, broken=gate.broken, tasks=gate.tasks)
        some = f", on {gate.shared} of the {gate.tasks} tasks" if 0 < gate.shared < gate.tasks else ""
        lines.append(
            element(
                "li",
                element("b", mark, class_=kind),
                f" {gate.agent} must score {percent(gate.wanted)}: ",
                element("span", result, class_=kind),
                element("span", some, class_="soft") if some else join(),
            )
        )
    commands = [element("code", keep_whole(command)) for gate in of_suite if (command := gate_command(gate, run))]
    hint = join(*commands)
    if commands and folded:
        hint = element("details", element("summary", "commands that play the rest"), hint)
    elif commands:
        hint = join(element("p", "To play the rest:", class_="soft"), hint)
    return element("div", element("h2", "Gates of the suite"), element("ul", *lines), hint, class_="gates")


def effort_rows(metrics: Metrics) -> list[tuple[Html | str, ...]]:
    """Effort of a scored episode and of a success."""
    names = {
        "steps": "steps",
        "tool_calls": "tool calls",
        "prompt_tokens": "tokens read",
        "completion_tokens": "tokens written",
        "seconds": "seconds of agent and tools",
        "cost": "cost",
        f"{COST}money": "money for calls",
        f"{COST}asking": "money for questions to the user",
        f"{COST}seconds": "seconds of calls, declared or measured",
        f"{COST}bytes": "bytes of answers",
        f"{COST}risk": "risk of calls",
    }
    return [
        (words, amount(effort.mean.value), _amounts(effort), amount(effort.per_pass))
        for name, words in names.items()
        if (effort := metrics.effort.get(name)) is not None and effort.mean.value
    ]


def amount(value: float | None) -> str:
    """A number of any size with three figures; an en dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _amounts(effort: Effort) -> str:
    bounds = effort.mean.ci95
    return "" if bounds is None else f"{amount(max(0.0, bounds.low))} to {amount(bounds.high)}"


def worst(evidence: Evidence, *, prefix: str = "", most: int = MAX_LISTED) -> Html:
    """The `most` tasks with the lowest scores, linked to their transcripts if there are any."""
    listed: list[tuple[Html | str, ...]] = [
        (
            join(
                _link_to_transcript(each, number, evidence, prefix),
                open_in_viewer(evidence, query_of_task(each.task)),
            ),
            f"{each.mean:.2f}",
            f"{each.passed}/{each.trials}",
            outcome_name(each.worst.outcome),
            str(each.worst.steps),
            element("pre", shorten(each.worst.reason, MAX_REASON_CHARS)),
        )
        for number, each in enumerate(evidence.worst[:most])
    ]
    more = f" ({most} of {len(evidence.worst)})" if len(evidence.worst) > most else ""
    seen = f"gymcp view {shlex.quote(str(evidence.run.folder))} --find is:failed"
    return rows_section(
        f"Tasks it fails, worst first{more}",
        ("task", "#mean score", "#solved", "worst trial", "#steps", ">why"),
        listed,
        f"The first {min(WORST_TASKS, len(evidence.worst))} lead to their transcripts below; for all: {seen}",
        fold=True,
    )


def _link_to_transcript(figures: TaskFigures, number: int, evidence: Evidence, prefix: str) -> Html:
    name = name_code(figures.task)
    if figures.worst.id not in evidence.transcripts:
        return name
    return element("a", name, href=f"#{prefix}transcript-{number}")


def transcripts(evidence: Evidence, *, prefix: str = "") -> Html:
    """Worst trials of the worst tasks, step by step."""
    parts = []
    for number, each in enumerate(evidence.worst[:WORST_TASKS]):
        if (record := evidence.transcripts.get(each.worst.id)) is None:
            continue
        head = f"{shorten(each.task, 200)} · trial {each.worst.trial} · score {each.worst.score or 0.0:.2f}"
        body = element("div", *transcript(record), id=f"{prefix}transcript-{number}", class_="transcript")
        parts.append(element("details", element("summary", head), body))
    return section("Transcripts of the worst", *parts)


def transcript(record: Trajectory) -> list[Html]:
    """Messages, answers, calls and results of an episode, each text cut to `MAX_TEXT_CHARS` characters."""
    parts = [element("p", record.reason[:MAX_REASON_CHARS], class_="soft")]
    room = MAX_TRANSCRIPT_CHARS
    for number, of_step in enumerate(events(record)):
        lines = [(kind, text[: MAX_TEXT_CHARS + 1]) for event in of_step for kind, text in _lines(event)]
        room -= sum(len(text) for _, text in lines)
        for kind, text in lines:
            parts.append(
                element(
                    "div", element("span", kind), element("pre", shorten(text, MAX_TEXT_CHARS)), class_=f"line {kind}"
                )
            )
        if room < 0 and number + 1 < len(record.steps):
            parts.append(element("p", f"... {len(record.steps) - number - 1} more steps: gymcp view", class_="soft"))
            break
    return parts


def _lines(event: Event) -> list[tuple[str, str]]:
    """(kind, text) of each line that shows the event."""
    match event:
        case MessageEvent(message):
            return [(message.role, message.content)]
        case AnswerEvent(text):
            return [] if event.is_only_calls else [("assistant", text or "(says nothing)")]
        case CallEvent(call):
            return [("call", _format_call(call))]
        case ResultEvent(result):
            return [_result_line(result)]
        case UserActEvent(act):
            return [("user's call", _format_call(call)) for call in act.calls] + [*map(_result_line, act.results)]


def _result_line(result: ToolResult) -> tuple[str, str]:
    return "error" if result.is_error else "result", result.content


def _format_call(call: ToolCall) -> str:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments), default=str)
    return f"{call.name} {arguments}"


def judge_rows(evidence: Evidence) -> list[tuple[str, str]]:
    """The judge, its rubric, and its agreement with people; empty if no judge was used."""
    judge = evidence.judge
    if judge is None:
        return []
    rows = _grader_judge_rows(judge["grader"]) if "grader" in judge else []
    if "rubric" in judge:
        grades = f"{judge['newest_grades']} of the {len(evidence.rows)} newest grades are its own"
        rows = [
            ("rubric", str(judge["rubric"])),
            ("judge", f"{judge['policy']}, {judge['votes']} vote(s), prompt {judge['prompt_version']}"),
            ("verdicts", f"{judge['judged']} episodes, {judge['errors']} without a verdict; {grades}"),
        ]
    if (search := judge.get("search")) is not None:
        answers = f"{search['answers']} answers, cost {search['cost']:.4f}"
        rows.append(("judge of the search", f"{search['policy']}, rubric {search['rubric']}, {answers}"))
    if "rubric" not in judge and "agreement" not in judge:
        return rows
    if (agreement := judge.get("agreement")) is None:
        return [*rows, ("agreement with people", "not measured: gymcp judge agreement LABELS")]
    low, high = agreement["agree_ci95"]
    share = f"{percent(agreement['agree'])} of {agreement['items']} labels ({percent(low)} to {percent(high)})"
    rows.append(("agreement with people", share))
    if agreement["kappa"] is not None:
        bounds = agreement["kappa_ci95"]
        range_of_kappa = f" ({bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else ""
        rows.append(("Cohen's kappa", f"{agreement['kappa']:.2f}{range_of_kappa}"))
    return rows


def _grader_judge_rows(figures: Mapping[str, Json]) -> list[tuple[str, str]]:
    """The judge that the environment's grader asks, and how many episodes have its verdict."""
    tokens = f"{figures['prompt_tokens']:,} tokens read, {figures['completion_tokens']:,} written"
    cost = f", cost {figures['cost']:.4f}" if figures["cost"] else ""
    return [
        ("judge of the grader", str(figures["policy"] or "none was named: --judge")),
        ("coverage of the judge", str(figures["words"])),
        ("used by the judge", f"{figures['answers']} answers, {tokens}{cost}"),
    ]


def facts_list(facts: Sequence[tuple[str, str]]) -> Html:
    """Figures in boxes, each under its name."""
    boxes = (element("div", element("dt", name), element("dd", value)) for name, value in facts)
    return element("dl", *boxes, class_="facts")


def provenance(evidence: Evidence) -> list[tuple[str, str]]:
    """Provenance of the figures: versions, digests and hashes, sampling, seeds, revision; nested keys are dotted."""
    run = evidence.run
    recorded = bool(run.created)
    facts = [
        ("folder", str(run.folder)),
        ("started", run.created or "not recorded"),
        ("git", run.git or ("not in a repository" if recorded else "not recorded")),
        ("seeds", ", ".join(map(str, run.seeds)) or "none recorded"),
        *((f"version of {name}", version) for name, version in list_leaves(run.versions)),
    ]
    return facts + list_leaves({name: value for name, value in run.config.items() if name != RECIPE})


def list_leaves(table: Mapping[str, Json], prefix: str = "") -> list[tuple[str, str]]:
    """(dotted key, value as text) of each leaf of a nested table."""
    leaves: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, Mapping) and value and prefix.count(".") < MAX_DEPTH:
            leaves += list_leaves(value, f"{prefix}{key}.")
        else:
            leaves.append((prefix + key, value if isinstance(value, str) else json.dumps(value)))
    return leaves
