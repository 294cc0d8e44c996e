"""Audit of a user that a model plays: turns in which it gave the answer away or left its scenario.

All checks are deterministic and compare texts. They find a value, a name or a run of words that stands in the user's
message and that the user could not know; they do not understand a paraphrase. docs/evaluation.md lists what is found,
what is not, and how often on planted cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gymcp.evaluators.graders.matching import parse_arguments
from gymcp.evaluators.metrics.measure import rate
from gymcp.evaluators.metrics.records import Rate
from gymcp.store import EpisodeRow
from gymcp.types import Json, Task, ToolCall, Trajectory

GOLD_VALUE, GOLD_TOOL, MADE_UP, UNASKED, QUOTED = (
    "gold value",
    "gold tool",
    "made up",
    "unasked action",
    "quoted scenario",
)
MEANING: Mapping[str, str] = {
    GOLD_VALUE: "said the value of a gold argument that nobody had told it: the answer is given away",
    GOLD_TOOL: "named a tool of the gold that nobody had named: the answer is given away",
    MADE_UP: "said a number, code or address that is in neither its scenario nor the conversation",
    UNASKED: "changed something with a tool of its own that the agent had not spoken of",
    QUOTED: "repeated its instructions word for word",
}
"""Kind of a finding -> its meaning."""
QUOTED_WORDS = 10
"""Words in a row from the scenario that count as repeating it."""
MIN_DIGITS = 4
"""Digits of a number that counts as made up if nothing says it; shorter ones are often readings or counts."""
MAX_VALUE_CHARS = 80
"""Longest gold value that is looked for: longer ones are texts, which are written rather than known."""

_READING = frozenset(
    {"can", "check", "describe", "find", "get", "is", "list", "look", "read", "run", "search", "show", "test", "view"}
)
"""First words of names of tools that only look."""
_VERBS = frozenset({
    "and", "apply", "change", "connect", "disconnect", "edit", "for", "grant", "make", "open", "put", "remove", "reset",
    "send", "set", "start", "stop", "the", "toggle", "turn", "update", "use",
})  # fmt: skip
"""Words in names of tools that are never taken as the subject of the tool."""
_WEAK = frozenset({"data", "device", "mode", "off", "on", "phone", "settings"})
"""Words that are taken as the subject of a tool only if its name has no other."""
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "reboot": ("restart", "power cycle", "switch it off", "turn it off", "off and on"),
    "reseat": ("reinsert", "take out", "remove and"),
    "payment": ("pay", "bill"),
    "permission": ("allow", "permit"),
}
_CODE = re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+|(?<![\w@])[+(]?[\w#][\w()#./:-]*\w")
_YEAR_OR_TIME = re.compile(r"(?:19|20)\d\d|\d{1,2}:\d\d(?::\d\d)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFinding:
    """One thing that the user said or did and should not have."""

    trajectory: str
    """Trajectory id."""
    task: str
    trial: int
    step: int
    """Number of the step that the user's turn came before, from 0."""
    kind: str
    """Key of `MEANING`."""
    what: str
    """The value, name or words in question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAudit:
    """Findings of all scored episodes of a run."""

    episodes: int
    """Scored episodes that were audited."""
    turns: int
    """Turns of the user in them: messages, and calls between two messages."""
    flagged_turns: int
    """Turns with a finding."""
    kinds: Mapping[str, int]
    """Findings by kind."""
    flagged: Rate
    """Success of the episodes with a finding."""
    clean: Rate
    """Success of the episodes without."""
    findings: tuple[UserFinding, ...]


def audit_users(
    trajectories: Iterable[Trajectory], tasks: Mapping[str, Task], rows: Mapping[str, EpisodeRow]
) -> UserAudit | None:
    """Audit of the scored episodes whose tasks have a scenario; None if there are none. `rows` by trajectory id."""
    audited: list[EpisodeRow] = []
    findings: list[UserFinding] = []
    turns = 0
    for trajectory in trajectories:
        task, row = tasks.get(trajectory.task), rows.get(trajectory.id)
        if task is None or task.user.scenario is None or row is None or row.score is None:
            continue
        audited.append(row)
        turns += _count_turns(trajectory)
        findings += audit_user(trajectory, task)
    if not audited:
        return None
    named = {finding.trajectory for finding in findings}
    return UserAudit(
        episodes=len(audited),
        turns=turns,
        flagged_turns=len({(finding.trajectory, finding.step) for finding in findings}),
        kinds={kind: count for kind in MEANING if (count := sum(each.kind == kind for each in findings))},
        flagged=rate([row for row in audited if row.id in named]),
        clean=rate([row for row in audited if row.id not in named]),
        findings=tuple(findings),
    )


def audit_user(trajectory: Trajectory, task: Task) -> list[UserFinding]:
    """Findings of one episode, in order. What user or agent have said before is known, and is not found again."""
    scenario = task.user.scenario or ""
    known = [scenario, *task.prompts]
    gold = [call for turn in task.gold for call in turn.calls]
    findings: list[UserFinding] = []
    for number, step in enumerate(trajectory.steps):
        user_texts = [message.content for message in step.observation.messages if message.role == "user"]
        for kind, what in dict.fromkeys(_check_texts(user_texts, known, gold, scenario)):
            findings.append(_finding(trajectory, number, kind, what))
        known += [*user_texts, step.action.text]
        spoken = [each.action.text for each in trajectory.steps[: number + 1]]
        for act in step.user_acts:
            for call in act.calls:
                if not _was_asked(call, spoken):
                    # the user's calls follow the step, and its message is read in the next
                    findings.append(_finding(trajectory, number + 1, UNASKED, call.name))
            known += [result.content for result in act.results]
    return findings


def _finding(trajectory: Trajectory, step: int, kind: str, what: str) -> UserFinding:
    return UserFinding(
        trajectory=trajectory.id, task=trajectory.task, trial=trajectory.trial, step=step, kind=kind, what=what
    )


def _count_turns(trajectory: Trajectory) -> int:
    """Number of times that the user spoke, or called its own tools; doing both before one step is one turn."""
    spoke = {n for n, step in enumerate(trajectory.steps) if any(m.role == "user" for m in step.observation.messages)}
    acted = {n + 1 for n, step in enumerate(trajectory.steps) if step.user_acts}
    return len(spoke | acted)


def _check_texts(
    said: Sequence[str], known: Sequence[str], gold: Sequence[ToolCall], scenario: str
) -> Iterator[tuple[str, str]]:
    """(kind, words) of what the user says in its messages of one turn and could not know."""
    text, heard = "\n".join(said), "\n".join(known)
    if not text.strip():
        return
    given: list[str] = []
    for value in dict.fromkeys(leaf for call in gold for leaf in _telling_values(parse_arguments(call))):
        if _holds(text, value) and not _holds(heard, value):
            given.append(value)
            yield GOLD_VALUE, value
    for name in dict.fromkeys(call.name for call in gold):
        if "_" in name and _holds(text, name) and not _holds(heard, name):
            yield GOLD_TOOL, name
    for code in _codes(text):
        if not _is_known(code, heard) and not any(code.casefold() in value.casefold() for value in given):
            yield MADE_UP, code
    if words := _find_quotation(text, scenario, [each for each in known if each is not scenario]):
        yield QUOTED, words


def _telling_values(arguments: Json) -> Iterator[str]:
    """Values in the arguments that no user says by chance: with digits, of several words, or with marks of a name."""
    if isinstance(arguments, Mapping):
        arguments = list(arguments.values())
    if isinstance(arguments, list | tuple):
        for each in arguments:
            yield from _telling_values(each)
    elif isinstance(arguments, str | int | float) and not isinstance(arguments, bool):
        value = str(arguments).strip()
        digits = sum(map(str.isdigit, value))
        is_code = bool(digits) and len(value) >= MIN_DIGITS
        if len(value) <= MAX_VALUE_CHARS and (is_code or re.search(r"\w[\s_@/\\]+\w", value)):
            yield value


def _holds(text: str, value: str) -> bool:
    """True if the text has the value as whole words, in any case and with any blanks."""
    pattern = r"\s+".join(map(re.escape, value.split()))
    return re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE) is not None


def _codes(text: str) -> Iterator[str]:
    """Addresses, and words with at least `MIN_DIGITS` digits that are no year, no time and no date of a year."""
    for match in _CODE.finditer(text):
        code = match[0].strip(".,:;#()/-")
        if "@" in code or (sum(map(str.isdigit, code)) >= MIN_DIGITS and not _YEAR_OR_TIME.fullmatch(code)):
            yield code


def _is_known(code: str, heard: str) -> bool:
    """True if the code was heard, or as the same letters and digits in another grouping."""
    plain = _plain(code)
    groups = re.findall(r"[\w@.+()#/:-]+(?:[ -][\d()-]+)*", heard)
    return _holds(heard, code) or any(plain in _plain(group) for group in groups)


def _plain(code: str) -> str:
    return re.sub(r"[\W_]", "", code).casefold()


def _find_quotation(text: str, scenario: str, public: Sequence[str]) -> str:
    """The first run of `QUOTED_WORDS` words that the text repeats from the scenario; empty if there is none.

    Words that also stand in a `public` text, such as the task's request, are no secret.
    """
    secret = _runs_of_words(scenario).keys() - {run for each in public for run in _runs_of_words(each)}
    return next((" ".join(run) for run in _runs_of_words(text) if run in secret), "")


def _runs_of_words(text: str) -> dict[tuple[str, ...], None]:
    """All runs of `QUOTED_WORDS` words, in order."""
    words = re.findall(r"[\w']+", text.casefold())
    return dict.fromkeys(tuple(words[at : at + QUOTED_WORDS]) for at in range(len(words) - QUOTED_WORDS + 1))


def _was_asked(call: ToolCall, spoken: Sequence[str]) -> bool:
    """True for a tool that only looks, and if the agent has said a telling word of the tool's name or its synonym."""
    words = [word for word in re.split(r"[_\W]+", call.name.casefold()) if word]
    if not words or words[0] in _READING:
        return True
    told = [word for word in words if word not in _VERBS]
    topics = [word for word in told if word not in _WEAK] or told or words
    text = " ".join(spoken).casefold()
    texts = (re.sub(r"[_-]", " ", text), text.replace("-", ""))  # "wi-fi" is "wifi", and "e-mail" "email"
    forms = [form for word in topics for form in (word, *_SYNONYMS.get(word, ()))]
    return any(re.search(rf"\b{re.escape(form)}", each) for form in forms for each in texts)
