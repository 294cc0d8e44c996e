"""The dialects in which a program may ask for a model: a module each, and the path at which the gateway speaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gymcp.agents.programs.dialects import anthropic_messages, chat_completions, openai_responses
from gymcp.agents.programs.requests import ModelAnswer, ModelRequest
from gymcp.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The reading and writing of one kind of model request."""

    read: Callable[[Mapping[str, Any]], ModelRequest]
    write: Callable[[ModelAnswer], Json]
    write_events: Callable[[ModelAnswer], Iterator[tuple[str, Json]]]
    """(name, data) pairs; an event without a name has the name ""."""
    write_error: Callable[[int, str, str], Json]


def _dialect(module: Any) -> Dialect:
    return Dialect(
        read=module.read_request,
        write=module.write_answer,
        write_events=module.write_events,
        write_error=module.write_error,
    )


DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": _dialect(chat_completions),
    "/v1/responses": _dialect(openai_responses),
    "/v1/messages": _dialect(anthropic_messages),
}
