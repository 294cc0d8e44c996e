"""Answers of a chat endpoint that come as a stream of server-sent events, put together as if they had come whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gymcp.agents.policies.http_client import Response
from gymcp.agents.policies.openai.wire_format import REASONING_KEYS
from gymcp.agents.tool_calls.strict_json import load_object
from gymcp.types import Json

STREAM_KEYS: Mapping[str, Json] = {"stream": True, "stream_options": {"include_usage": True}}
"""Keys of a request for a stream; without the second one, no usage comes."""


def is_stream(response: Response) -> bool:
    """True if the endpoint answers with events. One that knows no streams answers with plain JSON."""
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def join_stream(response: Response) -> tuple[dict[str, Json], float | None]:
    """The chat completion, and the seconds until the first token came; None if no token came, or its time is not known.

    Raises ValueError with a reason, `Malformed` included, if the events are no chat completion or stop before its end.
    """
    message: dict[str, Json] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Json]] = {}
    usage: Json = None
    first_end: int | None = None
    ended = False
    for event, end in _events(response.body):
        if event.get("error"):
            return dict(event), None
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            has_token = _add_delta(message, calls, choice.get("delta") or {})
            first_end = end if has_token and first_end is None else first_end
            ended = ended or bool(choice.get("finish_reason"))
    if not ended:
        raise ValueError("the stream ended before the answer did")
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    completion: dict[str, Json] = {"choices": [{"index": 0, "message": message}]}
    return completion | ({"usage": usage} if usage else {}), _time_of(first_end, response)


def _events(body: bytes) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Each event's object, with the number of bytes of the body up to its end."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end + 1
        line = body[start:end].strip()
        start = end
        if line.startswith(b"data:") and (content := line[5:].strip()) != b"[DONE]":
            yield load_object(content.decode(errors="replace")), end


def _add_delta(message: dict[str, Json], calls: dict[int, dict[str, Json]], delta: Mapping[str, Any]) -> bool:
    """Add what an event brings to the message; True if that holds a token."""
    has_token = False
    for key in ("content", *REASONING_KEYS):
        if isinstance(text := delta.get(key), str) and text:
            message[key] = message.get(key, "") + text
            has_token = True
    for part in delta.get("tool_calls") or ():
        index = part.get("index", len(calls))
        call = calls.setdefault(index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = part.get("id") or call["id"]
        for key in ("name", "arguments"):
            call["function"][key] += (part.get("function") or {}).get(key) or ""
        has_token = True
    return has_token


def _time_of(end: int | None, response: Response) -> float | None:
    """Seconds until the first `end` bytes of the body had come."""
    if end is None:
        return None
    return next((seconds for received, seconds in response.arrivals if received >= end), None)
