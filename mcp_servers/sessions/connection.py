"""The connection of a session with its server: requests, deadlines, and the errors for a server that is lost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import mcp
import mcp_types
from mcp.client.session import DEFAULT_CLIENT_INFO
from mcp.shared.exceptions import MCPError
from mcp_types.methods import SERVER_RESULTS
from mcp_types.version import LATEST_PROTOCOL_VERSION
from pydantic import BaseModel, TypeAdapter, ValidationError

from gymcp.errors import EnvInfraError, ProtocolError, ServerDied, ServerTimeout
from gymcp.mcp_servers.loop_share import MAX_CLOCK_FACTOR, Deadline, LateLoop
from gymcp.mcp_servers.output_tail import describe_output, show_output
from gymcp.mcp_servers.redaction import Redaction
from gymcp.mcp_servers.sandbox import SandboxProcess
from gymcp.mcp_servers.sanitize import plain_text
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.direct_requests import DirectRequests
from gymcp.mcp_servers.transports.messages import TOO_LARGE
from gymcp.mcp_servers.transports.violation import ProtocolViolation
from gymcp.types import Json

END_TIMEOUT_S = 5.0
"""Seconds to wait for the end of a server that closed its pipe. Its exit status is the reason, and comes late on a busy
machine."""

_ENVELOPE: dict[str, Json] = {
    mcp_types.PROTOCOL_VERSION_META_KEY: LATEST_PROTOCOL_VERSION,
    mcp_types.CLIENT_INFO_META_KEY: DEFAULT_CLIENT_INFO.model_dump(by_alias=True, mode="json", exclude_none=True),
    mcp_types.CLIENT_CAPABILITIES_META_KEY: {},
}
"""Metadata of each request in the newest version of the protocol, as the SDK's client writes it. Earlier versions have
none, and their results other fields, so their requests go through that client."""
START_LIMIT = "the limit of a start (to raise it: start_timeout_s of its ServerSpec)"
LATE = (
    f"the harness's event loop was late for {MAX_CLOCK_FACTOR} times the limit, so the server may have answered in "
    "time: the machine is overloaded, or code in the harness's process blocks the loop; play fewer episodes at once"
)
NOT_STARTED = (
    "its program must start the server itself; one that a file in Python only defines is started by: mcp run FILE.py"
)
"""Advice on a program that ends well before it has served."""
ResultT = TypeVar("ResultT", bound=BaseModel)
AnswerT = TypeVar("AnswerT")
ErrorRule = Callable[[str, int], type[EnvInfraError] | None]
"""(stage, error code) -> class of the error; None for the usual class."""


class ServerConnection:
    """The MCP client of one server process. Every error that it raises names the server and the stage."""

    def __init__(
        self,
        spec: ServerSpec,
        client: mcp.Client,
        process: SandboxProcess,
        violation: ProtocolViolation,
        *,
        redaction: Redaction | None,
        error_rule: ErrorRule,
        direct: DirectRequests | None = None,
    ) -> None:
        """`redaction`: removes secret values from messages. `error_rule`: see `StateTracker.error_class`. `direct`:
        requests past the client, for a server whose messages need no further step; None: all go through the client."""
        self.spec = spec
        self.client = client
        self.process = process
        self.share = violation.share
        """The server's share of the event loop's time."""
        self._violation = violation
        self._redaction = redaction
        self._error_rule = error_rule
        self._direct = direct

    @property
    def is_lost(self) -> bool:
        """True if the server broke the protocol, or has ended by itself or by a limit."""
        return self._violation.text is not None or self.process.returncode is not None

    async def request(self, method: str, params: dict[str, Json], result: type[ResultT]) -> ResultT:
        """Answer to a tool call, or to a request of the native runtime such as ``gymcp/state``.

        It has passed the checks of the SDK's client for a result of that method.
        """
        if self._direct is None or self.client.session.protocol_version != LATEST_PROTOCOL_VERSION:
            request = mcp_types.Request[dict[str, Any], str](method=method, params=params)
            return await self.client.session.send_request(request, result)
        answer = await self._direct.send(method, {**params, "_meta": {**params.get("_meta", {}), **_ENVELOPE}})
        if (check := _find_result_check(method)) is not None:
            check.validate_python(answer, by_name=False)
        return result.model_validate(answer, by_name=False)

    @contextlib.asynccontextmanager
    async def boundary(self, stage: str, timeout_s: float) -> AsyncIterator[None]:
        """Bound the time of the body, and translate the SDK's many errors for a lost server into those of gymcp.

        If the event loop was late for too long, it is an EnvInfraError and not a ServerTimeout.
        """
        try:
            async with Deadline(timeout_s):
                yield
        except LateLoop as error:
            raise EnvInfraError(self.message(stage, LATE)) from error
        except TimeoutError as error:
            limit = f", {START_LIMIT}" if timeout_s == self.spec.start_timeout_s else ""
            raise ServerTimeout(self.message(stage, f"no answer within {timeout_s:g} s{limit}")) from error
        except (MCPError, OSError, ValidationError, RuntimeError, BaseExceptionGroup) as error:
            raise await self._translate(stage, _innermost(error)) from error

    def message(self, stage: str, why: str) -> str:
        """Text of an error: server, stage, reason, and the end of the server's standard error."""
        tail = show_output(self.process.stderr_tail())
        text = f"server '{self.spec.name}': {stage}: {plain_text(why)}"
        if self._redaction is not None:
            tail, text = self._redaction.text(tail), self._redaction.text(text)
        return text + describe_output(tail, self.spec.name)

    async def _translate(self, stage: str, error: BaseException) -> BaseException:
        match error:
            case MCPError(code=mcp_types.REQUEST_TIMEOUT):
                return ServerTimeout(self.message(stage, "hung: it no longer answers"))
            case MCPError(code=mcp_types.CONNECTION_CLOSED) | OSError():
                return await self.explain_loss(stage)
            case MCPError(code=code):
                usual = ProtocolError if code == TOO_LARGE else EnvInfraError
                return (self._error_rule(stage, code) or usual)(self.message(stage, error.message))
            case ValidationError():
                first = error.errors()[0]
                return ProtocolError(self.message(stage, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))
            case RuntimeError():
                return ProtocolError(self.message(stage, str(error).splitlines()[0]))
            case _:
                return error

    async def explain_loss(self, stage: str) -> EnvInfraError:
        """The reason why the connection has closed: a violation of the protocol, a limit, or the server's end."""
        if self._violation.text:
            await self.process.drain_stderr()
        if self._violation.text and self.process.exceeded_limit() is None:  # else it was ended in the middle of a line
            return self._violation.error(self.message(stage, self._violation.text))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await self.process.wait()
        status = self.process.returncode
        if stage == "handshake" and status is not None:
            stage = "start"
        ended = f"the server ended (exit status {status})" if status is not None else "it hung up, and did not end"
        if stage == "start" and status == 0:
            ended = f"{ended} before it served: {NOT_STARTED}"
        return ServerDied(self.message(stage, self.process.exceeded_limit() or ended))


async def await_answer(seconds: float, answer: Awaitable[AnswerT]) -> AnswerT:
    """The answer, or the SDK's error for a request that timed out.

    The SDK's own clock is not used: it would blame the server for an event loop that is late. Raises LateLoop.
    """
    try:
        async with Deadline(seconds):
            return await answer
    except LateLoop:
        raise
    except TimeoutError:
        raise MCPError(code=mcp_types.REQUEST_TIMEOUT, message="no answer in time") from None


@functools.cache
def _find_result_check(method: str) -> TypeAdapter[Any] | None:
    """Check of the protocol for results of that method; None for the native runtime's own methods."""
    row: Any = SERVER_RESULTS.get((method, LATEST_PROTOCOL_VERSION))
    return None if row is None else TypeAdapter(row)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
