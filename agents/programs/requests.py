"""A request for the model's answer, whatever dialect a program speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.types import Decision, Message, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request of a program. Sampling settings other than these are the run's, whatever the program asks for."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    """Most tokens of the answer; None: as many as the run allows."""
    stop: tuple[str, ...] = ()
    streams: bool = False
    """True if the program wants the answer as events."""
    streams_usage: bool = False
    """True if the program wants the token counts among the events of a dialect that has them on demand."""
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Name of a tool -> its namespace, which the name begins with, for the tools that have one."""


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """(text before the first of the stop texts, that stop text); the whole text and an empty one without any."""
    found = [(at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    if not found:
        return text, ""
    at, stop = min(found)
    return text[:at], stop


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """The model's answer to one request."""

    id: str
    """Unique in an episode."""
    model: str
    """The name by which the program asked for the model."""
    decision: Decision
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Namespaces of the request."""
    streams_usage: bool = False
    """True if the request asked for usage in the stream."""
    stop_text: str = ""
    """The program's own stop text that ended the answer. Empty: none did, or an endpoint did not say."""

    @property
    def prompt_tokens(self) -> int:
        return self.decision.spent.prompt_tokens if self.decision.spent else 0

    @property
    def completion_tokens(self) -> int:
        return self.decision.spent.completion_tokens if self.decision.spent else 0

    @property
    def is_cut(self) -> bool:
        """True if the answer ran out of tokens."""
        return self.decision.sampled is not None and self.decision.sampled.finish == "length"


def read_field(body: Mapping[str, Any], name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """The field of a request; `default` if it is missing or null. Raises RequestRefused if it is of another type."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise RequestRefused(400, f"'{name}' has the wrong type: {type(value).__name__}")
    return value


def refuse_fields(body: Mapping[str, Any], reasons: Mapping[str, str], code: str = "invalid_request_error") -> None:
    """Raise RequestRefused, with the reason, if one of the fields asks for something: null, false, 0 and empty do not.

    `reasons`: name of a field that is not supported -> the reason, and what there is instead. `code`: as in
    RequestRefused.
    """
    for name, why in reasons.items():
        if body.get(name):
            raise RequestRefused(400, f"'{name}' is not supported: {why}", code)


def choose_tools(tools: Sequence[Tool], names: Sequence[str] | None) -> tuple[Tool, ...]:
    """The tools of these names, in the order of `tools`; None: all. Raises RequestRefused for a name without a tool."""
    if names is None:
        return tuple(tools)
    offered = {tool.name for tool in tools}
    if unknown := [name for name in names if name not in offered]:
        raise RequestRefused(400, f"'tool_choice' names {unknown[0]!r:.100}, which is not among 'tools'")
    return tuple(tool for tool in tools if tool.name in names)


def read_format(wanted: Any, name: str) -> None:
    """Raise RequestRefused if the answer shall be something other than text. `name`: that of the field."""
    if wanted is None or (isinstance(wanted, dict) and wanted.get("type", "text") == "text"):
        return
    kind = wanted.get("type") if isinstance(wanted, dict) else wanted
    why = "what the policy writes is not constrained: ask for the form in a message, and check the answer"
    raise RequestRefused(400, f"'{name}' of the type {kind!r:.40} is not supported: {why}")


def read_stop(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The texts that end an answer: one, or a list. Raises RequestRefused."""
    stop = read_field(body, name, (str, list), [])
    texts = [stop] if isinstance(stop, str) else stop
    if not all(isinstance(text, str) for text in texts):
        raise RequestRefused(400, f"'{name}' must be a text or a list of texts")
    return tuple(texts)


def read_objects(body: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The list of objects in a field; empty if it is missing. Raises RequestRefused."""
    values = read_field(body, name, list, [])
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise RequestRefused(400, f"'{name}[{index}]' is not an object")
    return list(values)


def read_text(content: Any, where: str, kinds: tuple[str, ...] = ("text", "input_text", "output_text")) -> str:
    """The text of a message: a string, or text parts. Raises RequestRefused for a part of another kind."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestRefused(400, f"{where}: the content is neither text nor a list of parts")
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in kinds or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise RequestRefused(400, f"{where}: a part of the type {kind!r} is not supported: only text is")
        texts.append(part["text"])
    return "".join(texts)
