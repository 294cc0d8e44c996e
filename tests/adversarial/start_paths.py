"""The ways in which a server comes to life; every attempt is made on each of them.

Another way is one more entry: how a sandbox is opened, and the spec of the rogue server on it. That is one file which
also runs as a script (``python3 /srv/program/server_main.py``), as servers of others do.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from expected import LISTS, REPLIES, WORLDS
from length import IS_FULL
from rogue import MODULES

from gymcp.mcp_servers.forkserver.python_scripts import forkable_script
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import PROGRAM, native_server
from gymcp.mcp_servers.sandbox import Limits, Mount, Sandbox, get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.snapshots.process_fork import fork_session
from gymcp.mcp_servers.spec import ServerSpec, StateSource
from gymcp.types import Json

JUDGED_ALIKE = frozenset(
    {
        *(name for name in REPLIES if name.startswith("flood_of_")),
        *("many_blocks", "many_kinds_of_blocks", "many_floats", "text_of_escapes", "deep_answer", "huge_number"),
        *("many_names", "ask_under_a_long_id"),
        *(LISTS.keys() - {"endless_pages", "escape_in_a_description", "garbage_before_the_list"}),
    }
)
"""Attempts that the harness judges by the lines of the server alone, with the same code on each path. What differs
among paths is how lines reach it, how long one may be, and how the server's end is noticed: the others try that."""

Wire = Literal["legacy", "2026-07-28"]
NEW_WIRE: Wire = "2026-07-28"
"""Wire on which requests to a server that declares its state go past the SDK's client."""
NEW_WIRE_SAMPLE = frozenset(
    {
        *("answer_twice", "answer_the_next_request", "answer_an_old_request", "answer_under_other_ids"),
        *("answer_of_another_kind", "half_an_answer", "garbage", "huge_number", "many_kinds_of_blocks"),
        *("escapes_in_a_result", "escapes_in_an_error", "ask_for_roots", "cancel_the_request", "ask_under_a_long_id"),
        *("two_of_one_name", "escape_in_a_description", "garbage_before_the_list"),
    }
)
"""Attempts of REPLIES and LISTS that `make test` makes on the new wire, too; `make nightly` makes all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPath:
    sandbox: Literal["bwrap", "docker", "none"]
    start: Literal["exec", "fork", "fork_script", "copy"] = "exec"
    """A server starts by itself, is forked as a program of gymcp's own, is forked as a third-party script, or is a copy
    of a forked one that lives on."""
    warm_pool_size: int = 0
    has_worlds: bool = True
    """False if a server whose state is in files is started as on another path."""
    has_lists: bool = True
    """False if the tool list was read before, from another process."""
    plays_all_as: tuple[str, ...] = ()
    """Users as whom all of JUDGED_ALIKE are played, too: "root", "user"."""
    has_new_wire: bool = False
    """True if attempts of REPLIES and LISTS are made on the new wire, too."""

    def plays_all(self, user: str) -> bool:
        return user in self.plays_all_as or IS_FULL

    def plays(self, name: str, user: str) -> bool:
        """True if an attempt that needs a session of its own is made on this path as this user."""
        if (name in WORLDS and not self.has_worlds) or (name in LISTS and not self.has_lists):
            return False
        return name not in JUDGED_ALIKE or self.plays_all(user)

    def plays_on_new_wire(self, name: str) -> bool:
        return self.has_new_wire and name in {*REPLIES, *LISTS} and (name in NEW_WIRE_SAMPLE or IS_FULL)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Sandbox]:
        async with open_warm_sandbox(get_sandbox(self.sandbox)) as sandbox:
            yield sandbox

    @contextlib.asynccontextmanager
    async def session(self, spec: ServerSpec, sandbox: Sandbox, state: Json = None) -> AsyncIterator[ToolSession]:
        """A session with a server that came to life on this path."""
        async with open_session(spec, sandbox, initial_state=state, seed=next(_seeds)) as session:
            if self.start != "copy":
                yield session
                return
            (copy,) = await fork_session(session, 1)
            async with copy.open() as branch:
                yield branch

    def rogue(
        self,
        *arguments: str,
        mounts: tuple[Mount, ...] = (),
        limits: Limits | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
        wire: Wire = "legacy",
    ) -> ServerSpec:
        start: Literal["exec", "fork"] = "fork" if self.start in ("fork", "copy") else "exec"
        spec = native_server("rogue", "rogue", modules=MODULES, mounts=mounts, limits=limits, start=start)
        if self.start == "fork_script":
            argv = ("python3", "-s", "-B", str(PROGRAM / "server_main.py"), *arguments)
            spec = replace(spec, argv=argv, fork=forkable_script(argv))
        else:
            spec = replace(spec, argv=(*spec.argv, *arguments))
        state: StateSource = "declared" if wire == NEW_WIRE else "opaque"  # past the client go calls of declared state
        return replace(spec, state=state, wire=wire, warm_pool_size=self.warm_pool_size, env={**spec.env, **env})


_seeds = itertools.count()
"""Every session is an episode of its own, which waits for the share of the loop that no other has used up."""
START_PATHS = {
    "exec": StartPath(sandbox="bwrap", plays_all_as=("root", "user"), has_new_wire=True),
    "fork": StartPath(sandbox="bwrap", start="fork", has_worlds=False),
    "copy": StartPath(sandbox="bwrap", start="copy", has_worlds=False, has_lists=False),
    "fork_script": StartPath(sandbox="bwrap", start="fork_script"),
    "pool": StartPath(sandbox="bwrap", warm_pool_size=1, has_worlds=False),
    "docker": StartPath(sandbox="docker", plays_all_as=("user",)),
}
UNCONFINED = StartPath(sandbox="none", plays_all_as=("user",))
