"""One HTTP server for all programs of a run: the model in three dialects, and the tools of each program's episode.

It listens on the loopback and on a unix socket that sandboxes mount. The key of a request, which a program gets for one
episode, tells the episode; without a known key nothing is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gymcp.agents.endpoint.http_server import REFUSAL_HEADERS, RequestRefused, read_body, serve_application
from gymcp.agents.endpoint.mcp_endpoint import McpEndpoint
from gymcp.agents.programs.dialects import DIALECTS, Dialect
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.requests import ModelAnswer
from gymcp.agents.tool_calls.strict_json import Malformed, load_object
from gymcp.aio import run_in_own_task
from gymcp.types import Json

SOCKET_NAME = "gateway"
KEEP_ALIVE_S = 5.0
"""Seconds of silence after which a client that asked for events gets a comment, while the model still answers."""
_COMMENT = b": wait\n\n"
"""A comment of server-sent events, which clients skip."""


@dataclass(slots=True)
class Gateway:
    """The running server."""

    model: str
    """Name of the model, which programs may use and need not."""
    port: int
    """Port on the loopback."""
    folder: Path
    """Folder that holds the unix socket, readable by servers."""
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    """Live episodes by key."""
    sandboxed: set[str] = field(default_factory=set)
    """Keys of programs in sandboxes, which reach the unix socket alone."""

    @contextlib.contextmanager
    def admit(self, exchange: Exchange, *, sandboxed: bool = False) -> Iterator[None]:
        """Let the program of an episode in for the duration of the block. `sandboxed`: by the unix socket only."""
        self.exchanges[exchange.token] = exchange
        if sandboxed:
            self.sandboxed.add(exchange.token)
        try:
            yield
        finally:
            del self.exchanges[exchange.token]
            self.sandboxed.discard(exchange.token)
            exchange.close()

    def find(self, request: Request) -> Exchange:
        """The episode whose key the request has. Raises RequestRefused.

        A sandbox has no way to the loopback of the machine, so a request from there with a key of its program comes
        from a second agent. Processes within a sandbox, or outside of any, may be sub-agents of one program.
        """
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if key not in self.exchanges:
            raise RequestRefused(401, "the key is not that of a live episode", "invalid_api_key")
        if key in self.sandboxed and request.client is not None:  # on a unix socket, clients have no address
            why = "the key is for the program in its sandbox, and this request comes from outside: a second agent"
            raise RequestRefused(403, f"{why} needs an episode of its own", "second_agent")
        return self.exchanges[key]


@contextlib.asynccontextmanager
async def open_gateway(folder: Path, model: str) -> AsyncIterator[Gateway]:
    """Serve programs until the context is left. `folder`: an empty one, in which the unix socket is made."""
    with contextlib.ExitStack() as stack:
        loopback = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        loopback.bind(("127.0.0.1", 0))
        local = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        local.bind(str(folder / SOCKET_NAME))
        (folder / SOCKET_NAME).chmod(0o666)
        gateway = Gateway(model=model, port=int(loopback.getsockname()[1]), folder=folder)
        tools = McpEndpoint(lambda request: gateway.find(request).tool_exchange)
        application = _Application(gateway, tools)
        async with run_in_own_task(tools.run()), serve_application(application, [loopback, local]):
            yield gateway


class _Application:
    """The ASGI application: keys are checked before anything is read."""

    def __init__(self, gateway: Gateway, tools: McpEndpoint) -> None:
        self._gateway = gateway
        self._tools = tools
        self._endpoints: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            **{("POST", path): functools.partial(self._ask_model, dialect) for path, dialect in DIALECTS.items()},
            ("POST", "/v1/messages/count_tokens"): _count_tokens,
            ("GET", "/v1/models"): self._list_models,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/")
        try:
            with self._gateway.find(Request(scope)).requests.hold(receive) as counting:
                if path == "/mcp":
                    await self._tools(scope, counting, send)
                    return
                request = Request(scope, counting)
                response = await self._find_endpoint(request.method, path)(request)
                await response(scope, counting, send)
        except RequestRefused as error:
            dialect = DIALECTS.get(path, DIALECTS["/v1/chat/completions"])
            body = dialect.write_error(error.status, error.code, str(error))
            await JSONResponse(body, error.status, REFUSAL_HEADERS.get(error.status))(scope, receive, send)

    def _find_endpoint(self, method: str, path: str) -> Callable[[Request], Awaitable[Response]]:
        endpoint = self._endpoints.get((method, path))
        if endpoint is None:
            have = ", ".join(" ".join(each) for each in self._endpoints)
            raise RequestRefused(404, f"no {method} {path} here; have {have}", "not_found")
        return endpoint

    async def _ask_model(self, dialect: Dialect, request: Request) -> Response:
        try:
            body = load_object((await read_body(request)).decode())
        except (Malformed, UnicodeDecodeError) as error:
            raise RequestRefused(400, f"the body is {error}", "invalid_json") from error
        model = str(body.get("model") or self._gateway.model)
        wanted = dialect.read(body)
        asking = asyncio.ensure_future(self._gateway.find(request).ask_model(wanted, model))
        try:
            if wanted.streams and not (await asyncio.wait([asking], timeout=KEEP_ALIVE_S))[0]:
                return _LateEvents(asking, dialect)
            answer = await asking
        except asyncio.CancelledError:
            asking.cancel()
            raise
        if wanted.streams:
            return Response(_encode_answer(dialect, answer), media_type="text/event-stream")
        return JSONResponse(dialect.write(answer))

    async def _list_models(self, _: Request) -> Response:
        entry = {"id": self._gateway.model, "object": "model", "created": 0, "owned_by": "gymcp"}
        return JSONResponse({"object": "list", "data": [entry]})


class _LateEvents(Response):
    """The events of an answer that is still awaited: comments until it is there, since clients give up over silence.

    The status is sent before the answer, so a refusal is an event, too.
    """

    media_type = "text/event-stream"

    def __init__(self, asking: asyncio.Future[ModelAnswer], dialect: Dialect) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._asking = asking
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            while not self._asking.done():
                await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
                await asyncio.wait([self._asking], timeout=KEEP_ALIVE_S)
            events = _encode_answer(self._dialect, self._asking.result())
        except RequestRefused as error:
            events = _encode_event("error", self._dialect.write_error(error.status, error.code, str(error)))
        finally:
            self._asking.cancel()
        await send({"type": "http.response.body", "body": events.encode()})


async def _count_tokens(request: Request) -> Response:
    """An estimate of the tokens in a request of Anthropic's dialect: four bytes each."""
    return JSONResponse({"input_tokens": max(1, len(await read_body(request)) // 4)})


def _encode_answer(dialect: Dialect, answer: ModelAnswer) -> str:
    """All events of an answer as one body: it is whole before its first event."""
    return "".join(_encode_event(*event) for event in dialect.write_events(answer))


def _encode_event(name: str, data: Json) -> str:
    text = data if isinstance(data, str) else json.dumps(data)
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"
