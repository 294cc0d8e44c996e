"""A server over pipes that is another one over HTTP: ``http_to_pipes.py URL``, by the SDK's own HTTP client."""

from __future__ import annotations

import sys
from typing import Any

import anyio
import mcp_types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage


async def main(url: str) -> None:
    async with streamable_http_client(url) as (read, write, *_), anyio.create_task_group() as group:
        group.start_soon(_down, read)
        async with write:
            async for line in anyio.wrap_file(sys.stdin):
                await write.send(SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)))
        group.cancel_scope.cancel()


async def _down(read: Any) -> None:
    async for item in read:
        if isinstance(item, Exception):
            raise item
        sys.stdout.write(item.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
