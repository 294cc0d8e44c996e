"""Digest helpers for tests: each is forked, then started as a new process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest

from gymcp.errors import Undigestible
from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.users.ownership import give_to_servers
from gymcp.mcp_servers.spec import FileState
from gymcp.mcp_servers.workspaces.digester import Digester, open_digester
from gymcp.mcp_servers.workspaces.overlay import overlay_namespace, why_no_overlay
from gymcp.mcp_servers.workspaces.workspace import Workspace
from gymcp.types import Json

WAY = ""
READ_ALL = 1 << 2
"""CAP_DAC_READ_SEARCH: in a namespace of its own, so over its user's files alone."""
Work = Callable[[Digester], Coroutine[None, None, None]]


@pytest.fixture(params=["forked", "started"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Start helpers by fork, or as new processes."""
    if request.param == "forked" and overlay_namespace() is None:
        pytest.skip(f"no helper is forked without overlays: {why_no_overlay()}")
    monkeypatch.setattr(sys.modules[__name__], "WAY", request.param)
    return str(request.param)


@pytest.fixture(autouse=True)
def set_workspace_mode(tmp_path: Path) -> None:
    """Give the folder the mode of a new workspace."""
    tmp_path.chmod(0o755)


@contextlib.asynccontextmanager
async def helpers(folder: Path, source: FileState, count: int = 1) -> AsyncIterator[list[Digester]]:
    """Open `count` helpers for the same workspace."""
    namespace = overlay_namespace()
    entry = namespace.entry if namespace is not None and WAY == "forked" else ()
    give_to_servers(folder)
    workspace = Workspace(folder=folder, upper_folder=folder, seed=folder, entry=entry)
    async with contextlib.AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(open_warm_sandbox(Bubblewrap()))
        opened = [open_digester("desk", source, workspace, sandbox) for _ in range(count)]
        found = [await stack.enter_async_context(each) for each in opened]
        assert {isinstance(each._process, ForkedProcess) for each in found} == {WAY == "forked"}
        yield found


def run_with_digester(folder: Path, work: Work, source: FileState | None = None) -> None:
    async def main() -> None:
        async with helpers(folder, source or FileState()) as (digester,):
            await work(digester)

    asyncio.run(main())


def digest_of(folder: Path, **source: Json) -> tuple[str, Json]:
    found: list[tuple[str, Json]] = []

    async def work(digester: Digester) -> None:
        found.append(await digester.state(await digester.key()))

    run_with_digester(folder, work, FileState(**source))
    return found[0]


def digest_here(folder: Path) -> tuple[str, Json]:
    """The digest by another helper without a previous state; works inside a running event loop."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return pool.submit(digest_of, folder, masks=("nothing",)).result()


def refusal(folder: Path, **source: Json) -> str:
    with pytest.raises(Undigestible) as caught:
        digest_of(folder, **source)
    return str(caught.value)
