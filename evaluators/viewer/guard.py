"""Access control of the viewer: it serves only a browser on this machine that has presented a token.

* The socket is bound to the loopback alone.
* ``Host`` must name the loopback: under DNS rebinding, a page elsewhere whose name resolves to 127.0.0.1 sends another.
* The token in an address is exchanged once for a cookie that scripts cannot read and that requests from other sites do
  not carry. A browser would send a cookie to every port of its host, so also to servers of other users: the cookie is
  therefore limited to a path that cannot be guessed, under which all of the viewer's pages lie.
* Requests other than GET and HEAD are refused, but for JSON that the viewer's own pages send, such as a note. No
  response may be framed, sniffed for its type, or load anything else.
"""

from __future__ import annotations

import html
import secrets
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gymcp.http_headers import is_same_token

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class AccessGuard:
    """An ASGI application around another one, which sees only authorised requests."""

    def __init__(self, app: ASGIApp, *, port: int, first: str = "") -> None:
        """`first`: the part of the address that is shown first, such as ``#q=is:failed``."""
        self._app = app
        self._port = port
        self._folder = f"/{secrets.token_urlsafe(24)}/"
        self._first = self._folder + first
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie, self._session = f"gymcp-{port}", secrets.token_urlsafe(24)
        self._tokens: set[str] = set()

    def new_address(self) -> str:
        """An address that lets in one browser, once."""
        token = secrets.token_urlsafe(24)
        self._tokens.add(token)
        return f"http://127.0.0.1:{self._port}/?token={token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        answer = self._refusal(scope)
        if answer is None:
            scope = {**scope, "path": "/" + scope["path"].removeprefix(self._folder)}
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """The response to a request that is refused; None for one that is allowed."""
        headers = Headers(scope=scope)
        if headers.get("host") not in self._hosts:
            return PlainTextResponse("gymcp view: asked for by another name than its own\n", status_code=421)
        if scope["method"] not in ("GET", "HEAD") and not _is_own_write(scope["method"], headers):
            return PlainTextResponse("gymcp view: writes nothing but the notes of its own pages\n", status_code=405)
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and asked:
            known = [token for token in self._tokens if is_same_token(token, asked)]
            if scope["method"] != "GET" or not known:
                return _no_token()
            self._tokens.remove(known[0])
            # a redirect would count as coming from the site that opened the address, and be sent without the cookie
            answer = HTMLResponse(_ONWARD.format(html.escape(self._first)))
            answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path=self._folder)
            return answer
        if not scope["path"].startswith(self._folder):
            return _no_token()
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        sent = [value for name, _, value in pairs if name == self._cookie]
        return None if any(is_same_token(value, self._session) for value in sent) else _no_token()


_ONWARD = '<!doctype html><meta charset="utf-8"><title>gymcp</title><meta http-equiv="refresh" content="0; url={}">\n'


def _is_own_write(method: str, headers: Headers) -> bool:
    """True for JSON that one of the viewer's own pages sends.

    A form of another site has another ``Origin`` and cannot send this type, and no script of another site may without
    asking first, which is refused.
    """
    same_origin = headers.get("origin") == f"http://{headers.get('host')}"
    same_site = headers.get("sec-fetch-site", "same-origin") == "same-origin"
    return method == "POST" and same_origin and same_site and headers.get("content-type") == "application/json"


def _no_token() -> Response:
    return PlainTextResponse(
        "gymcp view: open the address that it has printed; it lets one browser in, once: go on there, or start"
        " the viewer again\n",
        status_code=403,
    )
