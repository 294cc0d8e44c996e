"""Sessions of a script that a fork server runs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from session_calls import run

from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.python_scripts import forkable_script
from gymcp.mcp_servers.sandbox import Mount, Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import ServerSpec

__all__ = ["ARGV", "HARMLESS", "MODULE", "Make", "is_forked", "make", "run", "session"]

ARGV = ("python3", "-s", "-B", "/srv/script_server/server.py", "--level", "3")
MODULE = ("python3", "-s", "-B", "-m", "zipapp")
HARMLESS = "def begin(): pass\n"
Make = Callable[..., ServerSpec]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A server whose module `extra` has the given text, which runs when it is imported, and when the server begins."""

    def made(extra: str = HARMLESS, **changed: object) -> ServerSpec:
        folder = tmp_path / "server"
        folder.mkdir(exist_ok=True)
        shutil.copy(Path(__file__).with_name("script_server.py"), folder / "server.py")
        (folder / "extra.py").write_text(extra)
        mounts = (Mount(source=folder, target=PurePosixPath("/srv/script_server")),)
        environment = {"PYTHONHASHSEED": "0", "SETTING": "x"}
        spec = ServerSpec(name="script", argv=ARGV, env=environment, mounts=mounts, fork=forkable_script(ARGV))
        return replace(spec, **changed)  # type: ignore[arg-type]

    return made


@contextlib.asynccontextmanager
async def session(
    sandbox: Sandbox, spec: ServerSpec, files: dict[str, str] | None = None
) -> AsyncIterator[ToolSession]:
    state = {"files": files} if files is not None else None
    async with open_session(spec, sandbox, initial_state=state, seed=0) as opened:
        yield opened


def is_forked(opened: ToolSession) -> bool:
    return isinstance(opened.process, ForkedProcess)
