"""The user's folder and machine, as every case of the table finds them."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from case import SECRET


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of what gymcp installs and remembers, empty at first."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def port_in_use() -> Iterator[int]:
    """A port of loopback at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def here(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, which is the working folder. Handlers of signals are put back after the test."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GYMCP_HOME", str(home))
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("GYMCP_TEST_UNSET", raising=False)
    # six attempts at a request that fails take a quarter of a minute
    monkeypatch.setattr("gymcp.agents.policies.openai.client.OpenAIPolicy._pause_s", lambda self, attempt: 0.0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield folder
    for number, handler in handlers.items():
        signal.signal(number, handler)
