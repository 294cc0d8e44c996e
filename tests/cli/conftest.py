"""Runs that the tests of several verbs look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import BANK, gymcp


@pytest.fixture(scope="session")
def bank_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of `examples/bank.py`, which no test changes."""
    folder = tmp_path_factory.mktemp("bank") / "run"
    assert gymcp("eval", BANK, "--out", folder, "--json").returncode == 0
    return folder
