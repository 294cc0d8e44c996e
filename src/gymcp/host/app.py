"""The host as an ASGI application: access first, then the body, then the answer; every refusal is one JSON object."""

from __future__ import annotations

import functools
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gymcp.agents.endpoint.http_server import REFUSAL_HEADERS, RequestRefused, check_size, read_body
from gymcp.errors import GymcpError
from gymcp.host.host import Host
from gymcp.host.mcp_app import MCP_PATH, McpApp
from gymcp.host.openapi import OPENAPI_PATH, describe_api
from gymcp.host.operations import OPERATIONS, Access, Operation, OperationRequest
from gymcp.host.tokens import TOKEN_VARIABLE, read_presented_token
from gymcp.http_headers import is_same_token

_HEADERS = {**REFUSAL_HEADERS, 429: {"retry-after": "1"}, 503: {"retry-after": "1"}}

log = logging.getLogger(__name__)


def make_app(host: Host, mcp: McpApp, token: str | None) -> ASGIApp:
    """`token`: the host's; None: every client of the loopback may ask, but no page in a browser."""
    routes = [
        Route(operation.path, _make_endpoint(operation, host, token), methods=[operation.method])
        for operation in OPERATIONS
    ]
    own = Starlette(
        routes=[*routes, Route(OPENAPI_PATH, _show_api, methods=["GET"])],
        exception_handlers={HTTPException: _answer_http_error},
    )

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if token is None and (refusal := _refuse_pages(request)) is not None:
            await refusal(scope, receive, send)
            return
        await (mcp if scope["path"].rstrip("/") == MCP_PATH else own)(scope, receive, send)

    return application


@functools.lru_cache(maxsize=64)
def is_loopback(address: str) -> bool:
    """True for an address that this machine alone can reach."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _refuse_pages(request: Request) -> Response | None:
    """The refusal of a request that a page in a browser may have sent, from another site or under another name."""
    name = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
    if is_loopback(name.removeprefix("[").removesuffix("]")) and "origin" not in request.headers:
        return None
    why = f"a host without a token is asked as localhost only, and by no page: set {TOKEN_VARIABLE} for others"
    return _answer_refusal(RequestRefused(403, why, "forbidden"))


def _make_endpoint(operation: Operation, host: Host, token: str | None) -> Callable[[Request], Awaitable[Response]]:
    body = None if operation.body is None else TypeAdapter[Any](operation.body)
    gives = TypeAdapter[Any](operation.gives)

    async def answer(request: Request) -> Response:
        try:
            check_access(operation, request, host, token)
            check_size(request.headers)
            with _hold_body(host, request) as receive:
                counted = Request(request.scope, receive)
                asked = OperationRequest(
                    host=host,
                    path=request.path_params,
                    query=request.query_params,
                    body=None if body is None else _read_record(body, await read_body(counted)),
                    mcp_url=lambda: f"{str(request.base_url).rstrip('/')}{MCP_PATH}",
                )
                if "id" not in asked.path:
                    record = await operation.answer(asked)
                else:
                    with asked.episode.attend(read_presented_token(request.headers)):
                        record = await operation.answer(asked)
        except RequestRefused as error:
            return _answer_refusal(error)
        except GymcpError as error:
            return _answer_refusal(RequestRefused(500, str(error), "host_failed"))
        except Exception as error:  # the boundary: one defect must not show a traceback, or end other episodes
            log.exception("%s %s", operation.method, operation.path)
            why = f"the host raised {type(error).__name__}; gymcp --debug host shows where"
            return _answer_refusal(RequestRefused(500, why, "host_failed"))
        return Response(gives.dump_json(record), operation.status, media_type="application/json")

    return answer


def _hold_body(host: Host, request: Request) -> AbstractContextManager[Receive]:
    """The request's `receive`, which counts for the episode that the path names, if it names one."""
    id = request.path_params.get("id")
    return nullcontext(request.receive) if id is None else host.find(id).requests.hold(request.receive)


def check_access(operation: Operation, request: Request, host: Host, token: str | None) -> None:
    """Raise RequestRefused if the request's token does not allow the operation."""
    if operation.access is Access.ALL:
        return
    presented = read_presented_token(request.headers)
    if token is None and not presented:
        return
    if not presented:
        why = f"no token: send the header 'Authorization: Bearer TOKEN' with the host's token ({TOKEN_VARIABLE})"
        raise RequestRefused(401, why, "no_token")
    if token is not None and is_same_token(presented, token):
        return
    episode = host.find_by_token(presented)
    if operation.access is not Access.EPISODE or request.path_params.get("id") != episode.id:
        why = f"the token of episode {episode.id} is for that episode alone, and not for aborting it"
        raise RequestRefused(403, f"{why}: use the host's token", "forbidden")


def _read_record(kind: TypeAdapter[Any], body: bytes) -> Any:
    """The record in the body, which may be empty if every field has a default. Raises RequestRefused."""
    try:
        return kind.validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = first["msg"].replace("Input should be", "must be").replace("Field required", "is missing")
        what = what.replace("Unexpected keyword argument", "is no field of this request")
        why = f"'{where}' {what[:1].lower()}{what[1:]}" if where else f"the body: {what[:1].lower()}{what[1:]}"
        raise RequestRefused(400, f"{why}; see {OPENAPI_PATH}", "invalid_request") from error


async def _show_api(_: Request) -> Response:
    return JSONResponse(_api())


@functools.cache
def _api() -> dict[str, Any]:
    return describe_api()


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """A path or a method that there is not."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    why = f"no {what} here; have " + ", ".join(f"{each.method} {each.path}" for each in OPERATIONS)
    return _answer_refusal(RequestRefused(error.status_code, why, "unknown_path"))


def _answer_refusal(error: RequestRefused) -> Response:
    content = {"error": {"code": error.code, "message": str(error)}}  # `wire.Error`
    return JSONResponse(content, error.status, _HEADERS.get(error.status))
