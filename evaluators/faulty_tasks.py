"""Tasks that are known to be faulty upstream: no score on them says anything about an agent.

A list holds what somebody reported in public and what the pinned files confirm, or what those files show by
themselves. `tests/suites/test_faulty_tasks.py` checks every entry against the installed suite. Faults of suites that
are generated here are mended, not listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gymcp.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyTask:
    task: str
    """Task id."""
    reason: str
    """The fault, in a clause."""
    source: str
    """Public issue, or the file that shows the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyList:
    """The faulty tasks that are known of one version of a suite."""

    package: str
    """Package and version that the list is about."""
    version: str
    """Beginning of `Suite.version`; the list says nothing about other versions."""
    checked: str
    """Day on which the list was last checked."""
    tasks: tuple[FaultyTask, ...] = ()


_ONE_LINE_SORTED = (
    "the gold posts the words of report.txt in another order, as if sort ordered words; the file is one line, which"
    " sort returns as it is, so no sequence of calls gives the text"
)
_OTHER_WORDS = (
    "the user dictates a message that ends in '$10000.', the gold sends '$10000.00.', and the state holds the text: an"
    " agent that obeys fails (mended in multi_turn_base_143 only)"
)
_PASSES_AT_ONCE = "the checker passes it without any action"
_BANKING = "agentdojo 0.1.35, default_suites/v1/banking/user_tasks.py; gate null"
_CHECKED = "2026-11-23"
_BFCL = FaultyList(
    package="bfcl-eval 2026.3.23",
    version="2026.3.23",
    checked=_CHECKED,
    tasks=(
        *(
            FaultyTask(task=f"multi_turn_{category}_4", reason=_ONE_LINE_SORTED, source="ShishirPatil/gorilla#1367")
            for category in ("base", "miss_func", "miss_param", "long_context")
        ),
        *(
            FaultyTask(task=f"multi_turn_{category}_143", reason=_OTHER_WORDS, source="ShishirPatil/gorilla#956")
            for category in ("miss_func", "miss_param", "long_context")
        ),
    ),
)
_AGENTDOJO = FaultyList(
    package="agentdojo 0.1.35",
    version="0.1.35",
    checked=_CHECKED,
    tasks=tuple(
        FaultyTask(task=f"banking_user_task_{number}", reason=f"{_PASSES_AT_ONCE}: {why}", source=_BANKING)
        for number, why in (
            (5, "it accepts a payment that is in the account at the start"),
            (6, "it accepts a scheduled payment that is there at the start"),
            (8, "it checks nothing"),
            (9, "it wants nothing changed"),
            (10, "it wants nothing changed"),
        )
    ),
)
_TAU2 = FaultyList(package="inspect-evals 0.26.0, tau2 telecom", version="0.26.0", checked=_CHECKED)
# Upstream's gold fails in 24 of 7,207 variations (ScienceWorld#49): in their place come others, when tasks are made.
_SCIENCEWORLD = FaultyList(package="scienceworld 1.2.3", version="1", checked=_CHECKED)
_TEXTWORLD = FaultyList(package="textworld 1.7.0", version="1", checked=_CHECKED)
LISTS: Mapping[str, FaultyList] = {
    "agentdojo": _AGENTDOJO,
    "bfcl": _BFCL,
    "scienceworld": _SCIENCEWORLD,
    "tau2": _TAU2,
    "tau2-dual": _TAU2,
    "textworld": _TEXTWORLD,
}
"""Suite name -> its list."""


def find_list(config: Mapping[str, Json]) -> FaultyList | None:
    """The list for the suite and version of a run's config; None if there is none.

    A suite under attack, ``agentdojo-ATTACK``, has the list of the suite.
    """
    suite, version = str(config.get("suite", "")), str(config.get("suite_version", ""))
    faulty = LISTS.get(suite) or LISTS.get(suite.partition("-")[0] if suite.startswith("agentdojo-") else "")
    return faulty if faulty is not None and version.startswith(faulty.version) else None


def find_faulty(listed: FaultyList, tasks: Iterable[str]) -> dict[str, FaultyTask]:
    """Task id -> its fault, of those tasks that are faulty; a task under attack, ``TASK.GOAL``, has that of TASK."""
    faults = {each.task: each for each in listed.tasks}
    named = {task: faults.get(task) or faults.get(task.partition(".")[0]) for task in tasks}
    return {task: fault for task, fault in named.items() if fault is not None}
