"""Open sessions with servers: started in a sandbox, remote, replayed from a cassette, or running already."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import mcp
import mcp_types

from gymcp.errors import ConfigError
from gymcp.mcp_servers.loop_share import OPENING_GRANT_S, OPENING_S, START_S, LoopShare, charge_steps, resume_share
from gymcp.mcp_servers.redaction import redact_errors
from gymcp.mcp_servers.sandbox import Sandbox, SandboxProcess
from gymcp.mcp_servers.sessions.connection import ServerConnection
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.sessions.state_trackers import FileTracker, StateTracker, make_tracker
from gymcp.mcp_servers.spec import FileState, ServerSpec
from gymcp.mcp_servers.transports.cassette_transport import REPLAY_WIRE, open_remote_transport
from gymcp.mcp_servers.transports.direct_requests import DirectRequests
from gymcp.mcp_servers.transports.http_bridge import bridge_launch
from gymcp.mcp_servers.transports.http_remote import RemoteProcess, fault_of_url, is_live, redaction_for
from gymcp.mcp_servers.transports.service_launch import add_services
from gymcp.mcp_servers.transports.stdio import pipe_transport
from gymcp.mcp_servers.transports.tapped_streams import redact_transport
from gymcp.mcp_servers.transports.violation import ProtocolViolation
from gymcp.mcp_servers.workspaces.digester import open_digester
from gymcp.mcp_servers.workspaces.seeds import seed_folder
from gymcp.mcp_servers.workspaces.workspace import SavedWorkspace, open_workspace
from gymcp.types import Json

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams  # only a type

T = TypeVar("T")


@contextlib.asynccontextmanager
async def open_session(
    spec: ServerSpec,
    sandbox: Sandbox,
    *,
    initial_state: Json,
    seed: int,
    saved: SavedWorkspace | None = None,
    task: str = "",
) -> AsyncIterator[ToolSession]:
    """Start the server in the sandbox and make it ready for calls. At the end nothing of it remains.

    `saved`: files to go on from, instead of those of the initial state. `task`: the task whose answers are looked up on
    a cassette. Enter and leave the context in the same task (a rule of the SDK). Raises EnvInfraError if the server
    does not start.
    """
    if fault := fault_of_url(spec):
        raise ConfigError(f"server '{spec.name}': {fault}")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(redact_errors(redaction_for(spec)))
        if spec.url is not None:
            yield await stack.enter_async_context(_open_remote(spec, task, initial_state, seed))
            return
        launch, tracker = add_services(spec, bridge_launch(spec)), None
        if isinstance(spec.state, FileState):
            seed_files = saved.seed if saved else await seed_folder(initial_state, sandbox)
            workspace = await stack.enter_async_context(open_workspace(seed_files, sandbox, saved))
            digester = await stack.enter_async_context(open_digester(spec.name, spec.state, workspace, sandbox))
            launch = replace(
                launch, workspace=workspace.folder, upper_folder=workspace.upper_folder, entry=workspace.entry
            )
            tracker = FileTracker(workspace, digester)
        share = await stack.enter_async_context(resume_share((*_name_program(spec), task, seed)))
        share.charge(OPENING_S + START_S)
        charged = await stack.enter_async_context(_ChargedContexts(share))
        process = await charged.enter(sandbox.start(launch))

        async def start(session: ToolSession) -> None:
            await session.start(initial_state, seed)

        session = await charged.enter(connect(spec, process, start, tracker=tracker, share=share))
        yield session
        if not session.is_lost:
            share.grant(OPENING_GRANT_S)


def _name_program(spec: ServerSpec) -> tuple[Hashable, ...]:
    return spec.name, spec.argv, spec.url, tuple(sorted(spec.env.items()))


class _ChargedContexts:
    """Contexts that are entered one in the other. The share pays for entering and for leaving them."""

    def __init__(self, share: LoopShare) -> None:
        self._share = share
        self._stack = contextlib.AsyncExitStack()

    async def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        return await charge_steps(self._share, self._stack.enter_async_context(context))

    async def __aenter__(self) -> _ChargedContexts:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await charge_steps(self._share, self._stack.__aexit__(exc_type, exc_val, exc_tb))


@contextlib.asynccontextmanager
async def _open_remote(spec: ServerSpec, task: str, initial_state: Json, seed: int) -> AsyncIterator[ToolSession]:
    """A session with a remote server, or with its cassette."""
    async with resume_share((*_name_program(spec), task, seed)) as share:
        violation = ProtocolViolation(share=share)
        transport, recorder = open_remote_transport(spec, task, violation)

        async def start(session: ToolSession) -> None:
            await session.start(initial_state, seed)
            if recorder is not None:
                recorder.check()

        wired = spec if is_live(spec) else replace(spec, wire=REPLAY_WIRE)
        async with connect(wired, RemoteProcess(), start, through=(transport, violation)) as session:
            yield session


@contextlib.asynccontextmanager
async def connect(
    spec: ServerSpec,
    process: SandboxProcess,
    begin: Callable[[ToolSession], Awaitable[None]],
    *,
    through: tuple[AbstractAsyncContextManager[TransportStreams], ProtocolViolation] | None = None,
    tracker: StateTracker | None = None,
    share: LoopShare | None = None,
) -> AsyncIterator[ToolSession]:
    """A session with a running server, once `begin` has made it ready. Enter and leave it in the same task.

    `through`: a transport, and the record in which it notes violations; None: the pipes of the process. `tracker`: None
    stands for the one of `spec.state`. `share`: the server's budget of the loop's time; None: a new one.
    """
    redaction, direct = redaction_for(spec), None
    if through is None:
        recorded = ProtocolViolation(redaction.text if redaction else None, share)
        # a bridge needs headers and a redaction sees all messages, which the client's streams bring
        direct = DirectRequests() if redaction is None and spec.http is None else None
        streams = pipe_transport(
            process, recorded, line_bytes=spec.limits.line_bytes, headers=spec.http is not None, direct=direct
        )
        through = redact_transport(streams, redaction, recorded.share), recorded
    transport, violation = through
    tracker = tracker or make_tracker(spec)
    failure: BaseException | None = None
    async with contextlib.AsyncExitStack() as stack:
        client = mcp.Client(transport, mode=spec.wire, cache=None)
        server = ServerConnection(
            spec, client, process, violation, redaction=redaction, error_rule=tracker.error_class, direct=direct
        )
        async with server.boundary("handshake", spec.opening_timeout_s):
            await stack.enter_async_context(client)
        client.session.validate_tool_result = _skip_sdk_output_validation  # type: ignore[method-assign]
        session = ToolSession(server, tracker)
        try:
            await begin(session)
            yield session
        except BaseException as error:
            failure = error  # kept out of the client's task group, which would wrap it into an ExceptionGroup
    if failure is not None:
        raise failure


async def _skip_sdk_output_validation(name: str, result: mcp_types.CallToolResult) -> None:
    """Replaces the SDK's validation of structured content against the server's output schema.

    Agents never see structured content. A hostile schema, with a costly pattern or with references that double at every
    step, could block the event loop: meanwhile no timeout would run, and no other episode.
    """
