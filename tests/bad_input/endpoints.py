"""Model endpoints on loopback that answer as no endpoint should."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

from chat_server import Answer, Reply, chat_server, says

MEGABYTE = 1_000_000
_WHOLE = says("The agent did all that it was asked for.").body


def _think(text: str, reasoning: str) -> Reply:
    """A reply with the reasoning of a model beside its text."""
    message = {"role": "assistant", "content": text, "reasoning_content": reasoning}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return Reply(body=json.dumps({"choices": [{"message": message}], "usage": usage}).encode())


def _judge_after_long_reasoning(number: int, body: dict[str, Any]) -> Reply:
    """A verdict that cannot be read, after a megabyte of reasoning."""
    return _think("I cannot decide.", "hm " * (MEGABYTE // 3))


def _pay_then_fail(number: int, body: dict[str, Any]) -> Reply:
    """Answer before the run, then nothing but errors: the endpoint breaks when the run has begun."""
    return says("ok") if number == 0 else Reply(status=500, body=b"out of order")


def _echo_key(number: int, body: dict[str, Any]) -> Reply:
    """Refuse the key and print it, as some gateways do; the key stands in for that of the request."""
    return Reply(status=401, body=b'{"error": "Incorrect API key provided: sk-table-0123456789abcdef"}')


def _give(reply: Reply) -> Answer:
    return lambda number, body: reply


ANSWERS: dict[str, Answer] = {
    "says nothing": _give(Reply(silent=True)),
    "answers 500": _give(Reply(status=500, body=b"out of order")),
    "answers HTML": _give(Reply(body=b"<html><script>alert(1)</script>\x1b[31m</html>")),
    "answers HTML of 1 MB": _give(Reply(status=404, body=b"<html>" + b"x" * MEGABYTE)),
    "answers another object": _give(Reply(body=b'{"choices": "none"}')),
    "answers 40,000 brackets": _give(Reply(body=b"[" * 40_000)),
    "closes in mid-answer": _give(Reply(body=_WHOLE[:40], promised=len(_WHOLE))),
    "refuses and echoes the key": _echo_key,
    "does not know the model": _give(Reply(status=404, body=b'{"error": "the model does not exist"}')),
    "reasons for 1 MB": _judge_after_long_reasoning,
    "judges with control characters": _give(says("\x1b[2J\x1b]0;owned\x07 no verdict \u202e")),
    "fails once the run has begun": _pay_then_fail,
}


@contextlib.contextmanager
def serve_model(name: str) -> Iterator[str]:
    """Address of the endpoint of that name. ``hangs``: it takes the connection and never answers."""
    if name == "hangs":
        with socket.create_server(("127.0.0.1", 0)) as listening:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    elif name:
        with chat_server(ANSWERS[name]) as server:
            yield server.url
    else:
        yield "http://127.0.0.1:9/v1"
