"""The model that short training runs start from, and the number of their threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One thread, because sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the smallest model that answers in the compact format, with random weights."""
    size = TinySize(vocabulary=600, hidden=32, layers=1, heads=2)
    return make_tiny_model(tmp_path_factory.mktemp("model"), "compact", size=size)
