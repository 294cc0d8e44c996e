"""A middleware that vLLM puts before its endpoints: all but ``GET /health`` want the key.

vLLM asks for its key below some paths only, such as ``/v1``: its endpoints for new weights, which run methods by name,
answer anybody who reaches the port, as any page in a browser on this machine does. A copy of this file is imported by
vLLM's own interpreter, so it needs the standard library alone.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY_VARIABLE = "VLLM_API_KEY"
"""Environment variable in which vLLM finds the key that it asks for."""
OPEN = ("GET", "/health")
_REFUSAL = b'{"error": "Unauthorized"}'

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class KeyOnEveryPath:
    """An ASGI application around another, which sees only requests that carry the key."""

    def __init__(self, app: App) -> None:
        key = os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise RuntimeError(f"no key in ${KEY_VARIABLE}: refusing to serve without one")
        self._app = app
        self._wanted = hashlib.sha256(f"Bearer {key}".encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with 401, or hands the request on."""
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
        given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        found = hashlib.sha256(given[0]).digest() if len(given) == 1 else b""
        return hmac.compare_digest(found, self._wanted)
