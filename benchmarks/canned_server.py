"""An HTTP server on loopback that gives one prepared answer per path, as fast as it can.

It keeps connections alive and reads only the length of a request, so that nearly all CPU time of a benchmark is the
client's. It runs in a process of its own, prints its port, and ends when its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

HEAD_END = b"\r\n\r\n"
LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
ANSWER_TOKENS = 256
"""Number of tokens in an answer of the token endpoint."""


def chat_completion() -> dict[str, Any]:
    """An answer of a chat endpoint: one tool call and its usage."""
    arguments = json.dumps({"customer": "C-1042", "amount": 42.5, "reason": "the parcel arrived damaged " * 8})
    call = {"id": "call_1", "type": "function", "function": {"name": "refund_order", "arguments": arguments}}
    message = {"role": "assistant", "content": "I refund the order, as the handbook allows.", "tool_calls": [call]}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 2000, "completion_tokens": 60, "total_tokens": 2060},
    }


def token_answer() -> dict[str, Any]:
    """An answer of vLLM's token endpoint: token ids, each with its logprob."""
    ids = [1000 + 37 * number % 30000 for number in range(ANSWER_TOKENS)]
    content = [{"token": f"token_id:{id}", "logprob": -0.0123456789 * id, "top_logprobs": []} for id in ids]
    choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
    return {"request_id": "1", "choices": [choice]}


ANSWERS = {"/chat": json.dumps(chat_completion()).encode(), "/tokens": json.dumps(token_answer()).encode()}
"""The answer's body by path."""


class Connection(asyncio.Protocol):
    """One connection, kept alive; requests on it come one after another."""

    def __init__(self) -> None:
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, is_complete, rest = self._received.partition(HEAD_END)
        length = LENGTH.search(head)
        size = int(length[1]) if length else 0
        if not is_complete or len(rest) < size:
            return
        self._received = rest[size:]
        body = ANSWERS[head.split(b" ", 2)[1].decode("ascii")]
        answer_head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        assert self._transport is not None
        self._transport.write(answer_head.encode() + body)


async def serve() -> None:
    """Serve until standard input ends."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
