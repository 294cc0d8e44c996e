"""Every bad input of the table: no traceback, one line that says what to do, the exit code, and nothing lost.

The cases are in `cases_*.py`, one module for each part of the command line.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from case import Case
from cases import CASES, ELSEWHERE
from playing import play

from gymcp.cli.verbs import VERBS

MIN_CASES = 113
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("case", [case for case in CASES if not case.plays], ids=lambda case: case.id)
def test_a_bad_input_is_one_line_and_loses_nothing(
    case: Case, here: Path, port_in_use: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    play(case, here, port_in_use, monkeypatch, capfd)


def test_the_table_has_each_case_once_and_tries_every_verb() -> None:
    ids = [case.id for case in CASES]
    assert len(ids) >= MIN_CASES
    assert sorted(set(ids)) == sorted(ids)
    assert {verb.name for verb in VERBS} - {case.typed.split()[0] for case in CASES} == set()


@pytest.mark.parametrize("place", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_case_that_needs_more_equipment_is_tested_elsewhere(place: str) -> None:
    file, _, name = place.partition("::")
    assert f"\ndef {name}(" in (TESTS / file).read_text(encoding="utf-8")
