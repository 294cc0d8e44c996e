"""A cache of their own for the baselines and seeds of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GYMCP_HOME", str(tmp_path_factory.mktemp("home")))
        yield
