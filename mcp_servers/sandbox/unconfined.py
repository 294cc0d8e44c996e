"""The ``none`` sandbox: a plain process, for tests and for servers that you trust as you trust yourself.

The limits hold as in other sandboxes, and nothing else does: the server can read and write what the harness's user can,
and use the network. Paths inside the sandbox do not exist, so mount targets and /workspace are replaced by host paths
in the command and the environment.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from gymcp.errors import ConfigError, EnvInfraError
from gymcp.mcp_servers.sandbox.bubblewrap import ENVIRONMENT, WORKSPACE
from gymcp.mcp_servers.sandbox.interpreter import interpreter
from gymcp.mcp_servers.sandbox.process import Command, HostProcess, run
from gymcp.mcp_servers.sandbox.spec import Launch, SandboxProcess
from gymcp.scratch import scratch_folder

log = logging.getLogger(__name__)
_numbers = itertools.count(1)


class Unconfined:
    """The ``none`` backend."""

    name = "none"
    confined = False
    can_fork = False
    runs_images = False
    has_server_user = False
    mounts_overlays = False

    def __init__(self, *, use_cgroup: bool = True) -> None:
        self._use_cgroup = use_cgroup

    def check(self) -> None:
        """Do nothing: this backend needs nothing installed."""

    def start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        return self._run(launch)

    @asynccontextmanager
    async def _run(self, launch: Launch) -> AsyncIterator[HostProcess]:
        if not launch.argv:
            raise ConfigError("none: an empty command; have e.g. python3 server.py")
        if launch.loopback:
            raise ConfigError(
                "none: a server that speaks HTTP needs a loopback of its own, and here is only the host's; "
                "use --sandbox bwrap or docker"
            )
        _warn_once()
        folder = scratch_folder() / f"unconfined-{next(_numbers)}"
        workspace = launch.workspace if launch.workspace is not None else folder / "workspace"
        places = {str(WORKSPACE): str(workspace), **_link_mounts(launch, folder / "root")}
        for path in (folder / "tmp", folder / "workspace"):
            path.mkdir(parents=True)
        env = {**ENVIRONMENT, "HOME": str(folder / "tmp"), "TMPDIR": str(folder / "tmp"), **launch.env}
        argv = (str(interpreter().path), *launch.argv[1:]) if launch.argv[0] == "python3" else launch.argv
        command = Command(
            sandbox=self.name,
            argv=tuple(_on_host(word, places) for word in argv),
            env={name: _on_host(value, places) for name, value in env.items()},
            cwd=workspace,
            limits=launch.limits,
            workspace=None if launch.read_only else workspace,
            use_cgroup=self._use_cgroup,
            sandbox_processes=0,
        )
        try:
            async with run(command) as process:
                yield process
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _warn_once() -> None:
    log.warning("sandbox 'none': servers run UNCONFINED, with all of your files, your network and your rights")


def _link_mounts(launch: Launch, root: Path) -> dict[str, str]:
    """Mount target -> a link to its source, in a folder with the same layout as inside a sandbox."""
    places = {}
    for mount in launch.mounts:
        if not mount.source.exists():
            raise EnvInfraError(f"none: mount {mount.target}: {mount.source}: no such file or folder")
        link = root / mount.target.relative_to("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(mount.source.absolute())
        places[str(mount.target)] = str(link)
    return places


def _on_host(word: str, places: Mapping[str, str]) -> str:
    """Replace whole paths: ``/opt/a`` in ``--dir=/opt/a/b``, but neither in ``/opt/ab`` nor in ``/x/opt/a``."""
    targets = "|".join(re.escape(target) for target in sorted(places, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({targets})(?![\w.-])", lambda match: places[match[1]], word)
