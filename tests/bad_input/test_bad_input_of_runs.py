"""The cases of the table that start servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from case import Case
from cases import CASES
from equipment import usable
from playing import play


@pytest.fixture
def bwrap() -> None:
    usable("bwrap")


@pytest.mark.parametrize("case", [case for case in CASES if case.plays], ids=lambda case: case.id)
def test_a_bad_input_of_a_run_is_one_line_and_loses_nothing(
    case: Case,
    bwrap: None,
    here: Path,
    port_in_use: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    play(case, here, port_in_use, monkeypatch, capfd)
