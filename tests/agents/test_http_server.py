"""The server of the gateway and of the host."""

from __future__ import annotations

import asyncio
import socket

from starlette.responses import PlainTextResponse

from gymcp.agents.endpoint.http_server import serve_application


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    async def serve(listening: socket.socket) -> None:
        async with serve_application(PlainTextResponse("fine"), [listening]):
            assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.bind(("127.0.0.1", 0))
        asyncio.run(serve(listening))
