"""Four ways in which a session knows the state of its server, one for each `ServerSpec.state`.

================  ==================  =====================================================  ==========
``state``         tracker             key                                                    observable
================  ==================  =====================================================  ==========
``"declared"``    `DeclaredTracker`   digest that the server sends with every result         yes
`FileState`       `FileTracker`       digest of the files in the workspace                   yes
``"opaque"``      `CallLogTracker`    digest of the log of calls                             no
``"stateless"``   `StatelessTracker`  a constant                                             no
================  ==================  =====================================================  ==========

A session gets its tracker when it connects and asks nothing else about the kind of state. A new kind of state is one
more class here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import mcp_types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from gymcp.errors import (
    CannotFork,
    EnvInfraError,
    ProtocolError,
    ServerDied,
    ServerLimitExceeded,
    ServerTimeout,
    Undigestible,
)
from gymcp.mcp_servers.digest import digest_and_chars
from gymcp.mcp_servers.native.runtime import (
    LINE_KEY,
    RESULT_STATE_KEY,
    STATE_KEY,
    STATE_UNAVAILABLE,
    STATE_WITHIN_KEY,
    TIMEOUT_KEY,
    canonical_json,
)
from gymcp.mcp_servers.sessions.connection import ServerConnection, await_answer
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.messages import TOO_LARGE
from gymcp.mcp_servers.workspaces.digester import Digester
from gymcp.mcp_servers.workspaces.workspace import Workspace
from gymcp.types import Json

MAX_STATE_IN_RESULT_CHARS = 2000
"""Characters of a declared state that the server sends along with a result. A longer state is fetched, if it is new."""
MAX_STATES_CHARS = 128_000_000
"""Characters of all states that a server declares in one episode, as JSON. In memory they take up to 12 times that."""
RUNTIME_TIME_SHARE = 0.9
"""Share of a call's time after which the native runtime interrupts the tool by itself."""
STATELESS_KEY = hashlib.sha256(b"stateless").hexdigest()
_OPENING_STAGES = ("handshake", "setup", "list")


class StateTracker(Protocol):
    """Knowledge of one server's state: a key after every call and, if it can be observed, the state itself.

    The methods here are those of a server whose state cannot be observed. A tracker is used by one session.
    """

    is_observable: ClassVar[bool] = False
    """True if `state` returns the server's state."""
    key_identifies_state: ClassVar[bool] = True
    """True if equal keys mean equal states."""
    interrupts_calls: ClassVar[bool] = False
    """True if the server itself interrupts a call that takes too long: one that goes on has exhausted the server."""

    @property
    def key(self) -> str:
        """Digest of the state, as of the last call and `update`."""
        ...

    @property
    def workspace(self) -> Workspace | None:
        """The server's files, if they are its state."""
        return None

    def fork(self) -> StateTracker:
        """A tracker for a session with a copy of the server."""
        ...

    async def start(self, server: ServerConnection, initial_state: Json, seed: int) -> str | None:
        """Hand over the initial state. Returns the key of the tool list, if the server sends one."""
        return None

    async def resume(self, server: ServerConnection) -> None:
        """Check that a copied server has this state. Raises CannotFork."""
        return

    async def request_call(
        self, server: ServerConnection, name: str, arguments: dict[str, Json], timeout_s: float
    ) -> mcp_types.CallToolResult:
        """Send a tool call and return its result. Raises MCPError."""
        return await await_answer(timeout_s, server.client.call_tool(name, arguments))

    def read_result(self, server: ServerConnection, stage: str, result: mcp_types.CallToolResult) -> None:
        """Take over the state that comes with a result. Raises ProtocolError if it is missing or wrong."""
        return

    async def refresh_key(self, server: ServerConnection) -> None:
        """Ask for the key after an answer that brought none, such as an error."""
        return

    def log_call(self, name: str, arguments: Mapping[str, Json]) -> None:
        """Note a call that was answered."""
        return

    async def update(self) -> None:
        """Take note of the files that calls have changed. Raises Undigestible."""
        return

    async def verify(self, server: ServerConnection) -> None:
        """Look at the state itself if a key or a time only claims that it has not changed."""
        return

    async def state(self, server: ServerConnection) -> tuple[str, Json]:
        """(key, the state as it is recorded). Only for a state that is observable."""
        raise TypeError(f"server '{server.spec.name}': its state cannot be observed")

    def error_class(self, stage: str, code: int) -> type[EnvInfraError] | None:
        """Class of the error for an error code of the server; None for the usual class."""
        return None


class _SetupResult(BaseModel):
    stateKey: str | None = None
    toolsKey: str | None = None
    """Digest of the tool list. A list that was read before is not read again."""


class _StateResult(BaseModel):
    stateKey: str
    state: Any = None


class DeclaredTracker(StateTracker):
    """State that the server declares (native runtime). Every state that is used is checked against its key."""

    is_observable = True
    interrupts_calls = True

    def __init__(self, key: str = "") -> None:
        self._key = key
        self._fetched_state: tuple[str, Json] | None = None
        """(key, state) that was fetched since the last call."""
        self._state_in_result: tuple[str, Json] | None = None
        """(key, state) that came with the last call's result."""
        self._states_chars = 0
        """Characters of all states so far, which the record of the episode holds."""

    @property
    def key(self) -> str:
        return self._key

    def fork(self) -> StateTracker:
        return DeclaredTracker(self._key)

    async def start(self, server: ServerConnection, initial_state: Json, seed: int) -> str | None:
        async with server.boundary("setup", server.spec.opening_timeout_s):
            params = {"initialState": initial_state, "seed": seed, LINE_KEY: server.spec.limits.line_bytes}
            answer = await server.request("gymcp/setup", params, _SetupResult)
        if answer.stateKey is None:
            raise ProtocolError(server.message("setup", f"it declares a state, but sends no stateKey ({STATE_KEY})"))
        self._key = answer.stateKey
        return answer.toolsKey

    async def resume(self, server: ServerConnection) -> None:
        try:
            await self.state(server)
        except EnvInfraError as error:
            raise CannotFork(str(error)) from error

    async def request_call(
        self, server: ServerConnection, name: str, arguments: dict[str, Json], timeout_s: float
    ) -> mcp_types.CallToolResult:
        self._fetched_state = self._state_in_result = None
        # The native runtime checks results itself; the SDK's client would list the tools anew to check them once more.
        meta = {TIMEOUT_KEY: RUNTIME_TIME_SHARE * timeout_s, STATE_WITHIN_KEY: MAX_STATE_IN_RESULT_CHARS}
        params: dict[str, Json] = {"name": name, "arguments": arguments, "_meta": meta}
        try:
            return await await_answer(timeout_s, server.request("tools/call", params, mcp_types.CallToolResult))
        except MCPError as error:
            if error.code == STATE_UNAVAILABLE:  # the result is lost with the state
                raise Undigestible(server.message(f"tool '{name}'", error.message)) from error
            raise

    def read_result(self, server: ServerConnection, stage: str, result: mcp_types.CallToolResult) -> None:
        meta = result.meta or {}
        key = meta.get(STATE_KEY)
        if not isinstance(key, str):
            raise ProtocolError(server.message(stage, f"its result has no {STATE_KEY}"))
        self._key = key
        if RESULT_STATE_KEY in meta:
            self._state_in_result = self._verify_digest(server, stage, meta[RESULT_STATE_KEY], key)

    async def refresh_key(self, server: ServerConnection) -> None:
        self._key = (await server.request("gymcp/state", {}, _StateResult)).stateKey

    async def verify(self, server: ServerConnection) -> None:
        """Fetch the state if it was not fetched since the last call. Raises ProtocolError if its key is wrong."""
        if self._fetched_state is None:
            await self._fetch(server)

    async def state(self, server: ServerConnection) -> tuple[str, Json]:
        return self._fetched_state or self._state_in_result or await self._fetch(server)

    def error_class(self, stage: str, code: int) -> type[EnvInfraError] | None:
        if code == STATE_UNAVAILABLE:
            return Undigestible
        if code == TOO_LARGE and stage not in _OPENING_STAGES:  # the size of the state is the agent's doing
            return ServerLimitExceeded
        return None

    async def _fetch(self, server: ServerConnection) -> tuple[str, Json]:
        try:
            async with server.boundary("gymcp/state", server.spec.start_timeout_s):
                answer = await server.request("gymcp/state", {}, _StateResult)
        except (ServerTimeout, ServerDied) as error:
            if isinstance(error, ServerDied) and server.process.exceeded_limit() is None:
                raise
            raise ServerLimitExceeded(str(error)) from error
        self._fetched_state = self._verify_digest(server, "gymcp/state", answer.state, self._key, answer.stateKey)
        return self._fetched_state

    def _verify_digest(self, server: ServerConnection, stage: str, state: Json, *claims: str) -> tuple[str, Json]:
        """(key, state). Raises ProtocolError if the state does not have the keys that the server claims for it."""
        try:
            with server.share.charge_elapsed():
                key, chars = digest_and_chars(state)
        except (ValueError, RecursionError) as error:  # such as NaN: the native runtime says so itself
            raise ProtocolError(server.message(stage, f"its state is not JSON: {error}")) from error
        for claimed in claims:
            if claimed != key:
                raise ProtocolError(server.message(stage, f"it claims the key {claimed} for a state with {key}"))
        self._states_chars += chars
        if self._states_chars > MAX_STATES_CHARS:
            why = f"its states have more than {MAX_STATES_CHARS} characters together"
            raise ServerLimitExceeded(server.message(stage, why))
        return key, state


class FileTracker(StateTracker):
    """State in the files of the server's workspace, which a helper in a sandbox of its own digests."""

    is_observable = True

    def __init__(self, workspace: Workspace, digester: Digester, key: str = "") -> None:
        self._workspace = workspace
        self._digester = digester
        self._key = key

    @property
    def key(self) -> str:
        return self._key

    @property
    def workspace(self) -> Workspace | None:
        return self._workspace

    def fork(self) -> StateTracker:
        return FileTracker(self._workspace, self._digester, self._key)

    async def update(self) -> None:
        self._key = await self._digester.key()

    async def verify(self, server: ServerConnection) -> None:
        """Read files that were written to in this episode again, whatever their times say. The key may change."""
        self._key = await self._digester.key(read_again=True)

    async def state(self, server: ServerConnection) -> tuple[str, Json]:
        self._key, state = await self._digester.state(self._key)
        return self._key, state


class CallLogTracker(StateTracker):
    """Log of the calls to a server with a state that cannot be seen. Equal keys mean equal calls, not equal states."""

    key_identifies_state = False

    def __init__(self, log: hashlib._Hash | None = None) -> None:
        self._log = hashlib.sha256() if log is None else log

    @property
    def key(self) -> str:
        return self._log.hexdigest()

    def fork(self) -> StateTracker:
        return CallLogTracker(self._log.copy())

    def log_call(self, name: str, arguments: Mapping[str, Json]) -> None:
        self._log.update(canonical_json([name, arguments]).encode("utf-8", "surrogatepass"))


class StatelessTracker(StateTracker):
    """No state: the same key always."""

    @property
    def key(self) -> str:
        return STATELESS_KEY

    def fork(self) -> StateTracker:
        return self


def make_tracker(spec: ServerSpec) -> StateTracker:
    """Tracker of a server whose state is not in files; for that one there is `FileTracker`."""
    match spec.state:
        case "declared":
            return DeclaredTracker()
        case "stateless":
            return StatelessTracker()
        case "opaque":
            return CallLogTracker()
        case _:
            raise TypeError(f"server '{spec.name}': the state in its files needs a digester")
