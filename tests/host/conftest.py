"""One host for the tests of this folder that need no limits of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hosting import BANK, CLOSED, DEBTS, TWO_TURNS, Hosted, hosting


@pytest.fixture(scope="session")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with hosting(BANK, TWO_TURNS, CLOSED, DEBTS, out=tmp_path_factory.mktemp("hosted"), max_live=4) as running:
        yield running
