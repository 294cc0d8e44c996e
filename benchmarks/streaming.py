"""CPU time of one answer of a chat endpoint, whole and as a stream of one event per token.

The endpoint is a process of its own on loopback. It sends the same answer both ways; in a stream, each token by itself,
with a pause after it, as a model draws them. `Endpoint.stream` is not the default because of this ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import time

from child_processes import run_port_server

from gymcp.agents.policies.openai.client import Endpoint, open_endpoint
from gymcp.types import Message, Sampling

PAUSE_S = 0.0002
"""Seconds between two tokens of a stream."""
PROMPT = "The customer C-1042 asks whether the parcel can still be returned. " * 100


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": tokens}
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            sizes = (line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            body = json.loads(await reader.readexactly(int(next(sizes))))
            if body.get("stream"):
                await _stream(writer, tokens, usage)
                continue
            whole = {"choices": [{"message": {"role": "assistant", "content": "word " * tokens}}], "usage": usage}
            content = json.dumps(whole).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content) + content)


async def _stream(writer: asyncio.StreamWriter, tokens: int, usage: dict[str, int]) -> None:
    about = {"id": "chatcmpl-123456789012", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    choices = [{"index": 0, "delta": {"content": "word "}, "finish_reason": None} for _ in range(tokens)]
    events = [{**about, "choices": [choice]} for choice in choices]
    events += [{**about, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    events += [{**about, "choices": [], "usage": usage}]
    for event in events:
        text = f"data: {json.dumps(event)}\n\n".encode()
        writer.write(b"%x\r\n" % len(text) + text + b"\r\n")
        await asyncio.sleep(PAUSE_S)
    writer.write(b"0\r\n\r\n")


async def serve(tokens: int) -> None:
    """Serve until the process is ended; the first line of output is the port."""
    server = await asyncio.start_server(lambda r, w: _answer(r, w, tokens), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def cpu_of_answer(url: str, answers: int, *, stream: bool) -> float:
    """CPU seconds of this process for one answer, from the request to the decision."""
    async with open_endpoint(Endpoint(url=url, model="m", stream=stream)) as policy:
        messages = (Message(role="user", content=PROMPT),)
        await policy.chat(messages, (), Sampling())
        before = time.process_time()
        for _ in range(answers):
            await policy.chat(messages, (), Sampling())
        return (time.process_time() - before) / answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=200, help="tokens of an answer")
    parser.add_argument("--answers", type=int, default=40, help="answers of each kind in one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help="be the endpoint")
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(args.tokens))
        return
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with run_port_server(__file__, "--serve", "--tokens", str(args.tokens)) as (_, address):
        for _ in range(args.rounds):
            for stream, found in seconds.items():
                found.append(asyncio.run(cpu_of_answer(f"{address}/v1", args.answers, stream=stream)))
    whole, streamed = (statistics.median(seconds[stream]) for stream in (False, True))
    print(
        f"{args.tokens} tokens: whole {whole * 1e3:.2f} ms, streamed {streamed * 1e3:.2f} ms: {streamed / whole:.0f}x"
    )


if __name__ == "__main__":
    main()
