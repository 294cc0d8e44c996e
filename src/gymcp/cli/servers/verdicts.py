"""Verdicts of `gymcp check`, what it did not check, and the print of both."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResults:
    """Results of all checks of an environment."""

    env: str
    verdicts: tuple[Verdict, ...]
    unchecked: tuple[Unchecked, ...]

    @property
    def passed(self) -> bool:
        return all(verdict.passed for verdict in self.verdicts)


def print_verdicts(results: CheckResults, *, as_json: bool = False) -> None:
    """Print a line for each check, and for each part that was not checked; or all of it as one JSON object."""
    if as_json:
        checks = {
            each.check: {"passed": each.passed, "applies": each.applies, "detail": each.detail}
            for each in results.verdicts
        }
        missing = [{"subject": each.subject, "reason": each.reason} for each in results.unchecked]
        print_json({"env": results.env, "passed": results.passed, "checks": checks, "not_checked": missing})
        return
    for verdict in results.verdicts:
        word, colour = ("pass", "green") if verdict.passed else ("FAIL", "red")
        word, colour = (word, colour) if verdict.applies else ("n/a ", "dim")
        console.print(word, style=colour, end="")
        console.print(f"  {verdict.check:<12}", end="")
        console.print(in_one_line(verdict.detail), markup=False, highlight=False)
    for part in results.unchecked:
        console.print("not checked: ", style="yellow", end="")
        console.print(in_one_line(f"{part.subject}: {part.reason}"), markup=False, highlight=False)
