"""What goes over the wire to a chat endpoint, and what comes back: the request's JSON, the answer as a `Decision`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gymcp.agents.policies.prices import Price
from gymcp.agents.prompts.rendering import function
from gymcp.agents.tool_calls.strict_json import Malformed, load, load_object
from gymcp.types import Action, Decision, Json, Message, ModelUsage, Sampling, Tool, ToolCall

MAX_COUNT = 2**53
"""Tokens; a larger number is none that was counted."""
MAX_KEPT = 4096
"""Tools whose JSON is kept."""
_TOO_LONG = (
    "context_length_exceeded",
    "context length",
    "context window",
    "context size",
    "context limit",
    "too many tokens",
    "max_model_len",
    "prompt is too long",
    "input token count",
    "maximum number of tokens allowed",
)
"""How endpoints say that a prompt does not fit, in small letters."""


def request_body(model: str, messages: Sequence[Message], sampling: Sampling) -> dict[str, Json]:
    """What is sent for one answer, but for the tools."""
    body: dict[str, Json] = {
        "model": model,
        "messages": [_message(message) for message in messages],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
    }
    if sampling.top_p < 1:
        body["top_p"] = sampling.top_p
    if sampling.top_k:
        body["top_k"] = sampling.top_k  # not OpenAI's own, but of most that are compatible
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


class Writer:
    """Writes requests; what a tool looks like in them is written once, for as long as it is the same object."""

    def __init__(self) -> None:
        # ASCII, because a lone surrogate that a model wrote has no UTF-8
        self._encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode
        self._tools: dict[int, tuple[Tool, str]] = {}
        """By identity; the tool is kept, so that no other can take its place."""

    def request(self, body: Mapping[str, Json], tools: Sequence[Tool]) -> bytes:
        """The body's JSON with the tools on offer."""
        text = self._encode(body)
        if tools:
            text = f'{text[:-1]}, "tools": [{", ".join(map(self._tool, tools))}]}}'
        return text.encode()

    def _tool(self, tool: Tool) -> str:
        if id(tool) not in self._tools:
            if len(self._tools) >= MAX_KEPT:
                self._tools.clear()
            self._tools[id(tool)] = (tool, self._encode(function(tool)))
        return self._tools[id(tool)][1]


def _message(message: Message) -> dict[str, Json]:
    content = f"error: {message.content}" if message.is_error else message.content
    found: dict[str, Json] = {"role": message.role, "content": content}
    if message.tool_calls:
        found["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    return found


def _tool_call(call: ToolCall) -> dict[str, Json]:
    """What is no call goes back without arguments: endpoints refuse a conversation with arguments that are not JSON."""
    arguments = "{}" if call.parse_error or isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
    return {"id": call.id, "type": "function", "function": {"name": call.name or "invalid", "arguments": arguments}}


def decision_of(answer: Mapping[str, Any], model: str, price: Price) -> Decision:
    """What the model decided, and what that took. Raises ValueError, in words, for what is no chat completion."""
    try:
        message = answer["choices"][0]["message"]
        text = _text(message.get("content"))
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        usage = answer.get("usage") or {}
        prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        cached = _count((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(repr(error)) from error
    spent = ModelUsage(
        model=model,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost=price.of(prompt, completion, min(cached, prompt)),
    )
    return Decision(action=Action(text=text.strip(), tool_calls=calls), spent=spent)


def _text(content: Any) -> str:
    """What is said; some endpoints give it in parts, of which those that are no text are thoughts and the like."""
    if isinstance(content, list):
        return "".join(_text(part["text"]) for part in content if part.get("type") == "text")
    if content is None or isinstance(content, str):
        return content or ""
    raise ValueError("content is not text")


def _count(number: Any) -> int:
    """Tokens, as the endpoint has counted them."""
    if number is None:
        return 0
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MAX_COUNT:
        raise ValueError(f"usage: {number!r} is no number of tokens")
    return number


def _call(found: Mapping[str, Any]) -> ToolCall:
    """The endpoint's call; what the model wrote as arguments may be anything."""
    described = found["function"]
    name, arguments = described["name"], described.get("arguments") or "{}"
    if isinstance(arguments, Mapping):  # against OpenAI's own rule, which says text
        arguments = json.dumps(arguments)
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise ValueError("a tool call's name or arguments are not text")
    try:
        return ToolCall(id=str(found.get("id")), name=name, arguments=load_object(arguments))
    except Malformed as error:
        return ToolCall(
            id=str(found.get("id")), name=name, arguments=arguments, parse_error=f"the arguments are {error}"
        )


def is_too_long(text: str) -> bool:
    """Whether an endpoint says with this that the prompt does not fit."""
    small = text.lower()
    return any(sign in small for sign in _TOO_LONG)


def words_of(body: bytes) -> str:
    """What an endpoint said in words where it refused, short and on one line, as text that acts on no terminal."""
    text = body[:2000].decode(errors="replace")
    if len(body) <= 100_000:
        with contextlib.suppress(Malformed):
            text = _words_in(load(body.decode(errors="replace"))) or text
    text = " ".join(text.split())
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= 300 else f"{shown[:300]} [...]"


def _words_in(value: Json) -> str:
    """The sentence in an error's JSON; empty where there is none in the usual places."""
    while isinstance(value, Mapping):
        value = next((value[key] for key in ("error", "message", "detail") if value.get(key)), None)
    return value if isinstance(value, str) else ""
