"""Workbench requests with something left out that only the user knows, beside the same requests in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gymcp.envs.suites.asking import Hidden, twins
from gymcp.envs.suites.workbench.tasks import LEVELS, VERSION, task_and_draft
from gymcp.types import Suite, Task


def _file(vague: str, slot: str = "path") -> Hidden:
    words = ("file", "path", "where", "sheet", "folder")
    question = "Which file is it to be written to?"
    return Hidden(shown=(f"{{{slot}}}",), vague=vague, fact=slot, words=words, question=question)


def _person(slot: str, vague: str, question: str) -> Hidden:
    words = ("who", "whom", "name", "person", "colleague")
    return Hidden(shown=(f"{{{slot}}}",), vague=vague, fact=slot, words=words, question=question)


HIDDEN: Mapping[str, Hidden] = {
    "handover": _file("the file that we agreed on", "out"),
    "release_note": _file("the usual file"),
    "if_merged": _file("the status file"),
    "weekly_count": _file("the weekly sheet"),
    "invite": _person("who", "our guest", "Who is the guest: what is the full name?"),
    "reassign": _person("new", "the colleague I mentioned", "Who takes the tickets over?"),
    "leaver": _person("new", "the successor", "Who is the successor?"),
    "project_lead": _person("new", "the new manager", "Who is the new manager?"),
    "triage": _person("senior", "the senior on duty", "Who is the senior on duty?"),
    "restock": Hidden(
        shown=("{more}",),
        vague="as many as were delivered",
        fact="more",
        words=("many", "number", "amount", "much", "boxes"),
        question="How many boxes were delivered?",
    ),
    "commit_or_hold": Hidden(
        shown=("{limit}",),
        vague="what is allowed",
        fact="limit",
        words=("limit", "much", "allowed", "high", "maximum", "most"),
        question="By how much may the timeout go up?",
    ),
    "book_room": Hidden(
        shown=("{people} people", "{people}"),
        vague="the whole party",
        fact="people",
        words=("many", "people", "number", "size", "seats", "party"),
        question="How many people are you?",
    ),
    "meeting_abroad": Hidden(
        shown=("{time}",),
        vague="the time we agreed on",
        fact="time",
        words=("time", "when", "hour", "start", "begin", "begins"),
        question="At what time, where they are?",
    ),
    "if_paid": Hidden(
        shown=("'{note}'",),
        vague="that we always use",
        fact="note",
        words=("comment", "text", "wording", "words", "say"),
        question="What is the comment that you always use?",
    ),
    "wind_up": Hidden(
        shown=("{branch}",),
        vague="of the name we agreed on",
        fact="branch",
        words=("branch", "name", "called"),
        question="What is the branch to be called?",
    ),
}
"""By family, what is left out."""


def make_pairs(count: int = 1) -> Iterator[Task]:
    """Both twins of `count` tasks for each family and level, which are not those of the suite."""
    for number in range(100, 100 + count):
        for family, hidden in HIDDEN.items():
            for level in LEVELS:
                task, draft = task_and_draft("test", family, level, number)
                yield from twins(task, draft.slots, hidden)


def make_suite() -> Suite:
    return Suite(name="workbench_asking", version=VERSION, tasks=tuple(make_pairs()), source="generated")
