"""Verdicts of `gymcp check`, what it did not check, and the print of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gymcp.cli.output import console, in_one_line, print_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of one check."""

    check: str
    passed: bool
    detail: str
    applies: bool = True
    """False if there is nothing to check: the check passes, and its detail says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """A part of the environment that no check has seen."""

    subject: str
    reason: str
    """The reason, and what to do if it shall be checked."""


def print_verdicts(env: str, verdicts: Sequence[Verdict], unchecked: Sequence[Unchecked], *, as_json: bool) -> None:
    """Print a line for each check, and for each part that was not checked; or all of it as one JSON object."""
    if as_json:
        checks = {
            each.check: {"passed": each.passed, "applies": each.applies, "detail": each.detail} for each in verdicts
        }
        missing = [{"subject": each.subject, "reason": each.reason} for each in unchecked]
        passed = all(each.passed for each in verdicts)
        print_json({"env": env, "passed": passed, "checks": checks, "not_checked": missing})
        return
    for verdict in verdicts:
        word, colour = ("pass", "green") if verdict.passed else ("FAIL", "red")
        word, colour = (word, colour) if verdict.applies else ("n/a ", "dim")
        console.print(word, style=colour, end="")
        console.print(f"  {verdict.check:<12}", end="")
        console.print(in_one_line(verdict.detail), markup=False, highlight=False)
    for part in unchecked:
        console.print("not checked: ", style="yellow", end="")
        console.print(in_one_line(f"{part.subject}: {part.reason}"), markup=False, highlight=False)
