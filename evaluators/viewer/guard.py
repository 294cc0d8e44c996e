"""Who may ask the viewer: a browser on this machine that was given the token.

* The socket is bound to the loopback alone.
* ``Host`` must name it: a page elsewhere whose name is made to resolve to 127.0.0.1 (DNS rebinding) says another.
* The token in the address is exchanged for a cookie that scripts cannot read and other sites' requests do not carry.
* Nothing is answered to another method than GET, and no answer may be framed, guessed at, or load anything else.
"""

from __future__ import annotations

import hmac
import http.cookies
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class Guard:
    """An ASGI application around another, which sees only requests that may be answered."""

    def __init__(self, app: ASGIApp, *, token: str, port: int, first: str = "/") -> None:
        self._app = app
        self._token = token
        self._first = first
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"gymcp-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        answer = self._refusal(scope)
        await (answer or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that goes no further; None for one that may."""
        headers = Headers(scope=scope)
        if headers.get("host") not in self._hosts:
            return PlainTextResponse("gymcp view: asked for by another name than its own\n", status_code=421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("gymcp view: reads only\n", status_code=405)
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and asked:
            if not self._knows(asked):
                return _no_token()
            answer = RedirectResponse(self._first, status_code=303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
            return answer
        cookies: http.cookies.SimpleCookie = http.cookies.SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except http.cookies.CookieError:
            return _no_token()
        found = cookies.get(self._cookie)
        return None if found is not None and self._knows(found.value) else _no_token()

    def _knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(errors="replace"), self._token.encode())


def _no_token() -> Response:
    return PlainTextResponse("gymcp view: open the address that it has printed, with its token\n", status_code=403)
