"""The part of a report on a user that a model played: turns in which it gave the answer away or left its scenario."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gymcp.evaluators.metrics.user_audit import MEANING, UserAudit, UserFinding
from gymcp.evaluators.report.formatting import interval, percent
from gymcp.evaluators.report.html import Html, element, join, name_code
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.report.sections import MAX_LISTED, rows_section, section, transcript
from gymcp.visible_text import shorten

PLAYED_USER = "The user that a model played"
KIND_HEADINGS = ("finding", "times", "meaning")
NOT_AUDITED = "The user of this run was played by a model and was not audited: the tasks of the run are not at hand."
FOUND_ONLY = "Texts are compared, not understood: a paraphrase is not found (docs/evaluation.md, The user's mistakes)."


def user_section(evidence: Evidence) -> Html:
    """Counts by kind, the flagged turns, and the transcripts of the first episodes with one."""
    audit = evidence.user_audit
    if audit is None:
        return section(PLAYED_USER, element("p", NOT_AUDITED)) if was_played(evidence) else join()
    parts = [element("p", describe_audit(audit)), element("p", FOUND_ONLY, class_="soft")]
    listed: list[tuple[Html | str, ...]] = [
        (_link(finding, evidence), str(finding.trial), str(finding.step), finding.kind, element("code", finding.what))
        for finding in audit.findings[:MAX_LISTED]
    ]
    more = f" ({MAX_LISTED} of {len(audit.findings)})" if len(audit.findings) > MAX_LISTED else ""
    note = f"All episodes of a task: gymcp view {shlex.quote(str(evidence.run.folder))} --find task:NAME"
    return join(
        section(PLAYED_USER, *parts),
        rows_section("Findings by kind", KIND_HEADINGS, list(kind_rows(audit))),
        rows_section(f"Flagged turns{more}", ("task", "#trial", "#before step", "finding", ">what"), listed, note),
        section("Transcripts of flagged episodes", *_transcripts(evidence)),
    )


def was_played(evidence: Evidence) -> bool:
    """True if a model played the user of this run."""
    return bool(evidence.run.config.get("user_policy"))


def describe_audit(audit: UserAudit) -> str:
    """The audit in two sentences: how many turns have a finding, and the success with and without one."""
    count = audit.flagged.episodes
    words = (
        f"{audit.flagged_turns} of the user's {audit.turns:,} turns, in {count} of {audit.episodes:,} scored episodes,"
        " have a finding."
    )
    if not count or not audit.clean.episodes:
        return words
    return f"{words} Success of those {count}: {_describe(audit.flagged.success, audit)}"


def _describe(success: float | None, audit: UserAudit) -> str:
    bounds = f" ({interval(audit.flagged.ci95)})" if audit.flagged.ci95 else ""
    others = f" ({interval(audit.clean.ci95)})" if audit.clean.ci95 else ""
    return f"{percent(success)}{bounds}; of the others: {percent(audit.clean.success)}{others}."


def kind_rows(audit: UserAudit) -> Sequence[tuple[str, str, str]]:
    """(kind, number of findings, meaning) of each kind that occurred."""
    return [(kind, str(count), MEANING[kind]) for kind, count in audit.kinds.items()]


def _link(finding: UserFinding, evidence: Evidence) -> Html:
    name = name_code(finding.task)
    transcripts = list(evidence.user_transcripts)
    if finding.trajectory not in transcripts:
        return name
    return element("a", name, href=f"#flagged-{transcripts.index(finding.trajectory)}")


def _transcripts(evidence: Evidence) -> list[Html]:
    parts = []
    for number, record in enumerate(evidence.user_transcripts.values()):
        score = "–" if record.score is None else f"{record.score:.2f}"
        head = f"{shorten(record.task, 200)} · trial {record.trial} · score {score}"
        body = element("div", *transcript(record), id=f"flagged-{number}", class_="transcript")
        parts.append(element("details", element("summary", head), body))
    return parts
