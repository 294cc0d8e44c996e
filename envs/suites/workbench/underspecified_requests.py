"""Workbench requests that leave out what only the user knows, beside the same requests in full."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gymcp.envs.suites.generation.underspecified_pairs import VERSION, Hidden, ask_which, ask_who, make_pairs
from gymcp.envs.suites.workbench.tasks import LEVELS, task_and_draft
from gymcp.types import Suite


def _file(vague: str, slot: str = "path") -> Hidden:
    topics = ("file", "path", "sheet", "folder", "location", "filename")
    places = ("save", "saved", "write", "written", "put", "store", "go")
    words = (*ask_which(*topics), "filename", *(f"where {place}" for place in places))
    question = "Which file is it to be written to?"
    tools = ("write_file",)
    return Hidden(shown=(f"{{{slot}}}",), vague=vague, fact=slot, words=words, question=question, tools=tools)


def _person(slot: str, vague: str, question: str, tool: str, *topics: str) -> Hidden:
    words = ask_who("person", "colleague", *topics)
    return Hidden(shown=(f"{{{slot}}}",), vague=vague, fact=slot, words=words, question=question, tools=(tool,))


_GUEST = ("guest", "invite", "invited", "attend", "attends", "coming")
_TAKES = ("take", "takes", "taking", "gets", "get", "receives", "responsible", "assign", "assigned", "tickets")
_LEADS = ("manager", "lead", "leads", "leader")
HIDDEN: Mapping[str, Hidden] = {
    "handover": _file("the file that we agreed on", "out"),
    "release_note": _file("the usual file"),
    "if_merged": _file("the status file"),
    "weekly_count": _file("the weekly sheet"),
    "invite": _person("who", "our guest", "Who is the guest: what is the full name?", "add_attendee", *_GUEST),
    "reassign": _person("new", "the colleague I mentioned", "Who takes the tickets over?", "assign_ticket", *_TAKES),
    "leaver": _person("new", "the successor", "Who is the successor?", "assign_ticket", "successor", *_TAKES),
    "project_lead": _person("new", "the new manager", "Who is the new manager?", "create_relations", *_LEADS),
    "triage": Hidden(
        shown=("{day}",),
        vague="the day that we agreed on",
        fact="day",
        words=(*ask_which("day", "date"), "since when", "before when", "how old"),
        question="Which day did we agree on?",
        tools=("set_ticket_priority", "assign_ticket"),
    ),
    "restock": Hidden(
        shown=("{more}",),
        vague="as many as were delivered",
        fact="more",
        words=(
            "how many",
            "how much",
            "what amount",
            "what quantity",
            "which quantity",
            "number boxes",
            "number delivered",
        ),
        question="How many boxes were delivered?",
        tools=("edit_file", "write_file"),
    ),
    "commit_or_hold": Hidden(
        shown=("{limit}",),
        vague="what is allowed",
        fact="limit",
        words=(*ask_which("limit", "maximum", "threshold"), "how much", "how high", "how far", "what allowed"),
        question="By how much may the timeout go up?",
        tools=("git_add", "git_commit", "git_create_branch"),
    ),
    "book_room": Hidden(
        shown=("{people} people", "{people}"),
        vague="the whole party",
        fact="people",
        words=("how many", "how large", "how big", "number people", "number seats", "what size", "party size"),
        question="How many people are you?",
        tools=("create_event",),
    ),
    "meeting_abroad": Hidden(
        shown=("{time}",),
        vague="the time we agreed on",
        fact="time",
        words=(
            *ask_which("time", "hour"),
            *(f"when {what}" for what in ("start", "begin", "begins", "meet", "meeting")),
        ),
        question="At what time, where they are?",
        tools=("convert_time", "create_event"),
    ),
    "if_paid": Hidden(
        shown=("'{note}'",),
        vague="that we always use",
        fact="note",
        words=(*ask_which("comment", "text", "wording", "words", "note", "phrase"), "what say", "what write"),
        question="What is the comment that you always use?",
        tools=("comment_ticket",),
    ),
    "wind_up": Hidden(
        shown=("{branch}",),
        vague="of the name we agreed on",
        fact="branch",
        words=(*ask_which("branch"), "branch called", "what name", "which name", "how branch", "how call", "how name"),
        question="What is the branch to be called?",
        tools=("git_create_branch",),
    ),
}
"""The part that is left out, by family."""


def make_suite() -> Suite:
    kinds = [
        (partial(task_and_draft, "test", family, level), hidden)
        for family, hidden in HIDDEN.items()
        for level in LEVELS
    ]
    return Suite(name="workbench_asking", version=VERSION, tasks=tuple(make_pairs(kinds, 1)), source="generated")
