"""Middleware for vLLM that requires the key on every path except ``GET /health``.

vLLM itself checks its key only below some paths, such as ``/v1``. Its endpoints for new weights, which run methods by
name, answer everyone who reaches the port, and any page in a browser on this machine does. vLLM's own interpreter
imports a copy of this file, so the file must import only the standard library.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY_VARIABLE = "VLLM_API_KEY"
"""Environment variable from which vLLM reads its key."""
OPEN = ("GET", "/health")
"""Method and path of the one request that needs no key."""
_REFUSAL = b'{"error": "Unauthorized"}'

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class KeyOnEveryPath:
    """An ASGI application that passes only requests with the key to the application it wraps."""

    def __init__(self, app: App) -> None:
        key = os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise RuntimeError(f"no key in ${KEY_VARIABLE}: refusing to serve without one")
        self._app = app
        self._expected = hashlib.sha256(f"Bearer {key}".encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with 401."""
        if scope["type"] == "lifespan" or self._may_pass(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_REFUSAL))]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})

    def _may_pass(self, scope: Scope) -> bool:
        if scope["type"] == "http" and (scope["method"], scope["path"]) == OPEN:
            return True
        values = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        digest = hashlib.sha256(values[0]).digest() if len(values) == 1 else b""
        return hmac.compare_digest(digest, self._expected)
