"""Real sandboxes for the tests: without bubblewrap they are skipped, or fail (GYMCP_REQUIRE_ALL, _BWRAP)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from equipment import require_cgroup, usable
from runtime_wire import RUNTIME, Wire
from sandbox_runs import Ended, run_to_end, sandbox_of

from gymcp.mcp_servers.sandbox import Launch
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap


@pytest.fixture(scope="session")
def bwrap() -> Bubblewrap:
    usable("bwrap")
    return Bubblewrap()


@pytest.fixture(scope="session", params=["bwrap", "bwrap-watchdog"], ids=["cgroup", "watchdog"])
def limited(request: pytest.FixtureRequest) -> Bubblewrap:
    """Once with limits held by the kernel, once by the watchdog."""
    sandbox = sandbox_of(request.param)
    assert isinstance(sandbox, Bubblewrap)
    if request.param == "bwrap":
        require_cgroup()
    return sandbox


@pytest.fixture(scope="session")
def inside(bwrap: Bubblewrap) -> Callable[..., str]:
    """Run code inside and return its output; the code must not fail."""

    def run(code: str, launch: Launch | None = None) -> str:
        ended = run_to_end(bwrap, code, launch)
        assert ended.status == 0, ended.err
        return ended.out.strip()

    return run


@pytest.fixture(scope="session")
def to_end() -> Callable[..., Ended]:
    return run_to_end


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a sandbox mounts: the runtime and one program, without `__init__.py`."""
    root = tmp_path_factory.mktemp("mounted")
    programs = root / "gymcp" / "mcp_servers" / "programs"
    programs.mkdir(parents=True)
    native = programs.parent / "native"
    native.mkdir()
    shutil.copy(RUNTIME, native)
    shutil.copy(Path(__file__).parent / "programs_fixture" / "notes.py", programs)
    return root


@pytest.fixture
def wire(tree: Path) -> Iterator[Wire]:
    wire = Wire(tree)
    yield wire
    assert wire.close() == 0


@pytest.fixture(scope="module")
def lasting_wire(tree: Path) -> Iterator[Wire]:
    """One process for many examples."""
    wire = Wire(tree)
    yield wire
    assert wire.close() == 0
