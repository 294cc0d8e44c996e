"""The MCP endpoint of a host: the episode's token gives access to it, for one session at a time.

A second session on one token is a second agent in one world, so it is refused until the first has ended with DELETE.
Sessions are those of the protocol versions with a handshake; a client of a later version, which has none, is told which
versions there are.
"""

from __future__ import annotations

import secrets
from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gymcp.agents.endpoint.http_server import RequestRefused, check_size, read_body, replay_body
from gymcp.agents.endpoint.mcp_endpoint import McpEndpoint, answer_refusal
from gymcp.agents.endpoint.tool_exchange import ToolExchange
from gymcp.agents.tool_calls.strict_json import Malformed, load_object
from gymcp.host.episode import HostedEpisode
from gymcp.host.host import Host
from gymcp.host.tokens import read_presented_token

MCP_PATH = "/mcp"
_INITIALIZE = "initialize"
_EPISODE = "gymcp.episode"
"""Key of the episode in the scope of a request."""


class McpApp:
    """An ASGI application. Its `run` context must be open while it serves."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tools = McpEndpoint(_get_exchange)

    def run(self) -> AbstractAsyncContextManager[None]:
        """The context in which requests are served."""
        return self._tools.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            episode = self._find_episode(request)
            check_size(request.headers)
            scope[_EPISODE] = episode
            with episode.attend(episode.token), episode.requests.hold(receive) as counting:
                await self._serve(episode, Request(scope, counting), send)
        except RequestRefused as error:
            await answer_refusal(error)(scope, receive, send)

    def _find_episode(self, request: Request) -> HostedEpisode:
        token = read_presented_token(request.headers)
        if not token:
            raise RequestRefused(401, "no token: send the headers that the answer to the start of the episode has")
        ends_session = request.method == "DELETE"  # clients end their sessions after the last turn
        return self._host.find_by_token(token, over=ends_session)

    async def _serve(self, episode: HostedEpisode, request: Request, send: Send) -> None:
        """Answer within the session's rules. Raises RequestRefused."""
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await _refuse_version(version)(request.scope, request.receive, send)
            return
        session = request.headers.get(MCP_SESSION_ID_HEADER)
        if session is None and request.method == "POST":
            await self._open_session(episode, request, send)
        elif session is None or session != episode.mcp_session:
            raise RequestRefused(404, "no such MCP session on this token: begin with initialize")
        elif request.method == "DELETE":
            episode.mcp_session = None
            await Response(status_code=200)(request.scope, request.receive, send)
        elif request.method == "POST":
            await self._tools(request.scope, request.receive, send)
        else:
            await Response(status_code=405, headers={"allow": "POST, DELETE"})(request.scope, request.receive, send)

    async def _open_session(self, episode: HostedEpisode, request: Request, send: Send) -> None:
        if episode.mcp_session is not None:
            why = f"episode {episode.id} has an MCP session already, and a token is for one agent"
            raise RequestRefused(409, f"{why}: end that session first (DELETE), or start another episode")
        body = await read_body(request)
        try:
            method = load_object(body.decode()).get("method")
        except (Malformed, UnicodeDecodeError) as error:
            raise RequestRefused(400, f"the body is {error}") from error
        if method != _INITIALIZE:
            raise RequestRefused(400, "no MCP session: begin with initialize, and send its Mcp-Session-Id")
        session = episode.mcp_session = secrets.token_hex(16)

        async def send_with_session(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 200:
                    named = (MCP_SESSION_ID_HEADER.encode(), session.encode())
                    message = {**message, "headers": [*message["headers"], named]}
                else:
                    episode.mcp_session = None
            await send(message)

        await self._tools(request.scope, replay_body(body, request.receive), send_with_session)


def _get_exchange(request: Any) -> ToolExchange:
    """The tools of the episode that `McpApp` has found for the request."""
    episode: HostedEpisode = request.scope[_EPISODE]
    return episode.conversation.exchange


def _refuse_version(version: str) -> Response:
    """The refusal after which a client of a later version begins with a handshake."""
    data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version[:40]}
    why = "this protocol version has no sessions, which keep a second agent off the episode: begin with initialize"
    return answer_refusal(RequestRefused(400, why), UNSUPPORTED_PROTOCOL_VERSION, data)
