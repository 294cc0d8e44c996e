"""Sessions with servers: started in a sandbox, elsewhere, from a cassette, or running already."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import mcp
import mcp_types

from gymcp.errors import ConfigError
from gymcp.mcp_servers.redaction import redacted_errors
from gymcp.mcp_servers.sandbox import Sandbox, SandboxProcess
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import FileState, ServerSpec
from gymcp.mcp_servers.transports.cassette_transport import PLAYED_WIRE, remote_streams
from gymcp.mcp_servers.transports.http_bridge import bridged
from gymcp.mcp_servers.transports.http_remote import Elsewhere, fault_of_url, is_live, redaction_for
from gymcp.mcp_servers.transports.stdio import Violation, pipe_transport
from gymcp.mcp_servers.transports.tapped_streams import redact_transport
from gymcp.mcp_servers.workspaces.digester import open_digester
from gymcp.mcp_servers.workspaces.seeds import seed_folder
from gymcp.mcp_servers.workspaces.workspace import SavedWorkspace, open_workspace
from gymcp.types import Json

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams  # only a type


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
    """Starts the server in the sandbox and leaves it ready for calls; on the way out nothing of it remains.

    `saved`: files to go on from instead of the initial state's. `task`: whose answers of a cassette are meant. Enter
    and leave it in the same task (a rule of the SDK). Raises EnvInfraError where the server does not start.
    """
    if fault := fault_of_url(spec):
        raise ConfigError(f"server '{spec.name}': {fault}")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(redacted_errors(redaction_for(spec)))
        if spec.url is not None:
            yield await stack.enter_async_context(_remote(spec, task, initial_state, seed))
            return
        launch, workspace, digester = bridged(spec), None, None
        if isinstance(spec.state, FileState):
            seed_files = saved.seed if saved else await seed_folder(initial_state, sandbox)
            workspace = await stack.enter_async_context(open_workspace(seed_files, sandbox, saved))
            digester = await stack.enter_async_context(open_digester(spec.name, spec.state, workspace, sandbox))
            launch = replace(
                launch, workspace=workspace.folder, upper_folder=workspace.upper_folder, entry=workspace.entry
            )
        process = await stack.enter_async_context(sandbox.start(launch))

        async def begin(session: ToolSession) -> None:
            session.workspace, session.digester = workspace, digester
            await session.start(initial_state, seed)

        yield await stack.enter_async_context(connected(spec, process, begin))


@contextlib.asynccontextmanager
async def _remote(spec: ServerSpec, task: str, initial_state: Json, seed: int) -> AsyncIterator[ToolSession]:
    """A session with a server elsewhere, or with its cassette."""
    violation = Violation()
    transport, recorder = remote_streams(spec, task, violation)

    async def begin(session: ToolSession) -> None:
        await session.start(initial_state, seed)
        if recorder is not None:
            recorder.check()

    spoken = spec if is_live(spec) else replace(spec, wire=PLAYED_WIRE)
    async with connected(spoken, Elsewhere(), begin, (transport, violation)) as session:
        yield session


@contextlib.asynccontextmanager
async def connected(
    spec: ServerSpec,
    process: SandboxProcess,
    begin: Callable[[ToolSession], Awaitable[None]],
    through: tuple[AbstractAsyncContextManager[TransportStreams], Violation] | None = None,
) -> AsyncIterator[ToolSession]:
    """A session with a running server, once `begin` has made it ready. Enter and leave it in the same task.

    `through`: a transport, and where it notes what goes wrong; None: the pipes of the process.
    """
    redaction = redaction_for(spec)
    if through is None:
        noted = Violation(redaction.text if redaction else None)
        streams = pipe_transport(process, noted, line_bytes=spec.limits.line_bytes, headers=spec.http is not None)
        through = redact_transport(streams, redaction, noted.share), noted
    transport, violation = through
    failure: BaseException | None = None
    async with contextlib.AsyncExitStack() as stack:
        client = mcp.Client(transport, mode=spec.wire, cache=None)
        session = ToolSession(spec, client, process, violation)
        session.redaction = redaction
        async with session.boundary("handshake", spec.start_timeout_s):
            await stack.enter_async_context(client)
        client.session.validate_tool_result = _believed  # type: ignore[method-assign]
        try:
            await begin(session)
            yield session
        except BaseException as error:
            failure = error  # kept out of the client's task group, which would wrap it into an ExceptionGroup
    if failure is not None:
        raise failure


async def _believed(name: str, result: mcp_types.CallToolResult) -> None:
    """Instead of the SDK's check of structured content, of which nobody is shown anything, against the server's schema.

    What that takes is the server's to choose, with a pattern or with references that double at every step; and while it
    goes on, in this process, no timeout and no other episode does.
    """
