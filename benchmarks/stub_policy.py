"""A policy without a model: an OpenAI chat endpoint on loopback that waits for a fixed time and calls one tool.

It calls the last tool on offer in every turn, and in the last turn says that it is done, so an episode has the same
number of turns in every framework. One process, standard library only, little CPU: the measurement is of its clients.
Prints its port and, when its standard input ends, the number of requests it has answered and the seconds from the first
to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time

ASSISTANT_MESSAGE = re.compile(rb'"role":\s*"assistant"')
HEAD_ENDS = b"\r\n\r\n"
LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)


class Counts:
    """Requests that all connections together have answered, and the times of the first and the last."""

    def __init__(self) -> None:
        self.requests = 0
        self.first = self.last = 0.0


class Connection(asyncio.Protocol):
    """One connection, kept alive; requests on it come one after another."""

    def __init__(self, turns: int, latency_s: float, counts: Counts) -> None:
        self._counts = counts
        self._turns = turns
        self._latency_s = latency_s
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, rest = self._received.partition(HEAD_ENDS)
        length = LENGTH.search(head)
        size = int(length[1]) if length else 0
        if not separator or len(rest) < size:
            return
        self._received = rest[size:]
        if not size:  # the list of models, which a client may ask for before the run
            self._write(b'{"object": "list", "data": []}')
            return
        self._counts.first = self._counts.first or time.perf_counter()
        answer = self._answer(rest[:size])
        asyncio.get_running_loop().call_later(self._latency_s, self._send, answer)

    def _answer(self, body: bytes) -> bytes:
        turn = len(ASSISTANT_MESSAGE.findall(body))
        message: dict[str, object] = {"role": "assistant", "content": None}
        finish = "tool_calls"
        if turn < self._turns - 1:
            name = json.loads(body)["tools"][-1]["function"]["name"]
            call = {"name": name, "arguments": json.dumps({"number": turn})}
            message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": call}]
        else:
            message["content"], finish = "All is counted.", "stop"
        return json.dumps(
            {
                "id": "stub",
                "object": "chat.completion",
                "created": 0,
                "model": "stub",
                "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
            }
        ).encode()

    def _send(self, body: bytes) -> None:
        self._counts.requests += 1
        self._counts.last = time.perf_counter()
        self._write(body)

    def _write(self, body: bytes) -> None:
        if not self._transport.is_closing():
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)


async def serve(turns: int, latency_s: float, port: int) -> None:
    """Serve until standard input ends."""
    loop, counts = asyncio.get_running_loop(), Counts()
    server = await loop.create_server(lambda: Connection(turns, latency_s, counts), "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()
    print(json.dumps({"requests": counts.requests, "seconds": counts.last - counts.first}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before an answer")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 for any free one")
    args = parser.parse_args()
    asyncio.run(serve(args.turns, args.latency, args.port))
