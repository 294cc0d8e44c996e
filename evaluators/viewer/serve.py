"""Server of the viewer on the loopback, until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

import uvicorn

from gymcp.errors import ConfigError
from gymcp.evaluators.viewer.app import make_app
from gymcp.evaluators.viewer.episode import Decode
from gymcp.evaluators.viewer.guard import AccessGuard
from gymcp.evaluators.viewer.list_app import make_list_app
from gymcp.evaluators.viewer.run_list import open_run_list
from gymcp.evaluators.viewer.runs import open_runs
from gymcp.evaluators.viewer.task_facts import FindTasks

_GRACE_S = 2
"""Seconds that running requests get when the viewer ends."""


def serve_viewer(
    folders: Sequence[Path],
    *,
    port: int = 0,
    decode: Decode | None = None,
    find_tasks: FindTasks | None = None,
    who: str,
    find: str = "",
    listed: bool = False,
    ready: Callable[[Callable[[], str], Sequence[str]], None],
) -> None:
    """Show the runs until SIGINT or SIGTERM, which raise KeyboardInterrupt or end the process.

    `listed`: show a list of the runs among and below the folders; else the folders are one run, or two side by side.
    `who`: the person who notes. `find`: the first search. `ready` is called with a function that makes addresses, each
    of which lets in one browser, and with the problems of the runs. Port 0: a free port. Raises StoreError if no run
    can be shown, and ConfigError if the port is taken.
    """
    with ExitStack() as stack:
        if listed:
            runs = stack.enter_context(open_run_list(folders))
            app, problems = make_list_app(runs, decode=decode, find_tasks=find_tasks, who=who), runs.problems
        else:
            shown = stack.enter_context(open_runs(folders))
            app = make_app(shown, decode=decode, find_tasks=find_tasks, who=who)
            problems = (*shown.problems, *(problem for each in shown.opened for problem in each.problems))
        listening = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # an answer is sent in two pieces
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"view: port {port} of 127.0.0.1 cannot be had: {error.strerror}; try --port 0"
            ) from error
        first = "#" + urlencode({"q": find}) if find else ""
        guard = AccessGuard(app, port=int(listening.getsockname()[1]), first=first)
        config = uvicorn.Config(
            guard,
            log_level="error",
            use_colors=False,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_GRACE_S,
        )
        _Server(config, lambda: ready(guard.new_address, problems)).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Server that calls `ready` once it accepts requests; from then on a signal ends it cleanly."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        await asyncio.to_thread(self._ready)
