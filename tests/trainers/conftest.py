"""The model that short training runs start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the smallest model that answers in the compact format, with random weights."""
    size = TinySize(vocabulary=600, hidden=32, layers=1, heads=2)
    return make_tiny_model(tmp_path_factory.mktemp("model"), "compact", size=size)
