"""Wire format of a chat endpoint: requests as JSON, answers as `Decision`, errors as text."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gymcp.agents.policies.prices import Price
from gymcp.agents.prompts.rendering import describe_tool
from gymcp.agents.tool_calls.strict_json import Malformed, load, load_object
from gymcp.types import Action, Decision, Json, Message, ModelUsage, Sampling, Tool, ToolCall

MAX_TOKEN_COUNT = 2**53
"""Number of tokens from which on a count in an answer is not believed."""
MAX_REASONING_CHARS = 200_000
"""Characters of a decision's reasoning that are recorded, from its beginning."""
REASONING_KEYS = ("reasoning_content", "reasoning")
"""Keys of a message under which endpoints send reasoning: vLLM, DeepSeek and others; OpenRouter and newer vLLM."""
MAX_CACHED_TOOLS = 4096
"""Maximum number of tools whose JSON is cached."""
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
"""Phrases with which endpoints say that a prompt does not fit, in lower case."""


def request_body(model: str, messages: Sequence[Message], sampling: Sampling) -> dict[str, Json]:
    """The body of a request, without the tools."""
    body: dict[str, Json] = {
        "model": model,
        "messages": [_message(message) for message in messages],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
    }
    if sampling.top_p < 1:
        body["top_p"] = sampling.top_p
    if sampling.top_k:
        body["top_k"] = sampling.top_k  # not in OpenAI's API, but in most compatible ones
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


class RequestWriter:
    """Writes requests; the JSON of a tool is cached for as long as it is the same object."""

    def __init__(self) -> None:
        # ASCII, because a lone surrogate that a model wrote has no UTF-8
        self._encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode
        self._tools: dict[int, tuple[Tool, str]] = {}
        """The JSON of tools by identity; the tool is kept, so that no other object gets the same identity."""

    def write(self, body: Mapping[str, Json], tools: Sequence[Tool]) -> bytes:
        """The JSON of the body with the tools on offer."""
        text = self._encode(body)
        if tools:
            text = f'{text[:-1]}, "tools": [{", ".join(map(self._tool, tools))}]}}'
        return text.encode()

    def _tool(self, tool: Tool) -> str:
        if id(tool) not in self._tools:
            if len(self._tools) >= MAX_CACHED_TOOLS:
                self._tools.clear()
            self._tools[id(tool)] = (tool, self._encode(describe_tool(tool)))
        return self._tools[id(tool)][1]


def _message(message: Message) -> dict[str, Json]:
    content = f"error: {message.content}" if message.is_error else message.content
    fields: dict[str, Json] = {"role": message.role, "content": content}
    if message.tool_calls:
        fields["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _tool_call(call: ToolCall) -> dict[str, Json]:
    """The call's JSON; a malformed call has no arguments, because endpoints refuse any that are not JSON."""
    arguments = "{}" if call.parse_error or isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
    return {"id": call.id, "type": "function", "function": {"name": call.name or "invalid", "arguments": arguments}}


def parse_decision(answer: Mapping[str, Any], model: str, price: Price) -> Decision:
    """The action in a chat completion, and its usage. Raises ValueError with a reason for anything else."""
    try:
        message = answer["choices"][0]["message"]
        text = _text(message.get("content"))
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        usage = answer.get("usage") or {}
        prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        cached = _count((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks choices[0].message, or its parts are of other kinds: {answer!r:.200}") from error
    spent = ModelUsage(
        model=model,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost=price.of(prompt, completion, min(cached, prompt)),
    )
    return Decision(action=Action(text=text.strip(), tool_calls=calls), spent=spent, reasoning=_reasoning(message))


def _reasoning(message: Mapping[str, Any]) -> str:
    """The reasoning in a message; empty if there is none, or if it is not text."""
    return cut_reasoning(next((message[key] for key in REASONING_KEYS if isinstance(message.get(key), str)), ""))


def cut_reasoning(text: str) -> str:
    """The text without blanks around it, cut with a note if it is longer than is recorded."""
    reasoning = text.strip()
    if len(reasoning) <= MAX_REASONING_CHARS:
        return reasoning
    return (
        f"{reasoning[:MAX_REASONING_CHARS]}\n[cut: the first {MAX_REASONING_CHARS:,} of {len(reasoning):,} characters]"
    )


def _text(content: Any) -> str:
    """The text of a message. Some endpoints send it in parts; parts of another type, such as thoughts, are left out."""
    if isinstance(content, list):
        return "".join(_text(part["text"]) for part in content if part.get("type") == "text")
    if content is None or isinstance(content, str):
        return content or ""
    raise ValueError("content is not text")


def _count(number: Any) -> int:
    """A number of tokens in the endpoint's usage; 0 if it is missing. Raises ValueError."""
    if number is None:
        return 0
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MAX_TOKEN_COUNT:
        raise ValueError(f"usage: {number!r} is no number of tokens")
    return number


def _call(entry: Mapping[str, Any]) -> ToolCall:
    """A tool call in the endpoint's answer; its arguments are text that the model wrote, and may be malformed."""
    function = entry["function"]
    name, arguments = function["name"], function.get("arguments") or "{}"
    if isinstance(arguments, Mapping):  # some endpoints send an object, although OpenAI's API says text
        arguments = json.dumps(arguments)
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise ValueError("a tool call's name or arguments are not text")
    try:
        return ToolCall(id=str(entry.get("id")), name=name, arguments=load_object(arguments))
    except Malformed as error:
        return ToolCall(
            id=str(entry.get("id")), name=name, arguments=arguments, parse_error=f"the arguments are {error}"
        )


def says_prompt_too_long(text: str) -> bool:
    """True if the endpoint's error means that the prompt is longer than the context."""
    lower = text.lower()
    return any(phrase in lower for phrase in _TOO_LONG)


def read_error_text(body: bytes) -> str:
    """The text of an endpoint's error: one short line of printable characters, safe for a terminal."""
    text = body[:2000].decode(errors="replace")
    if len(body) <= 100_000:
        with contextlib.suppress(Malformed):
            text = _find_sentence(load(body.decode(errors="replace"))) or text
    text = " ".join(text.split())
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= 300 else f"{printable[:300]} [...]"


def _find_sentence(value: Json) -> str:
    """The sentence in an error's JSON; empty if there is none in the usual places."""
    while isinstance(value, Mapping):
        value = next((value[key] for key in ("error", "message", "detail") if value.get(key)), None)
    return value if isinstance(value, str) else ""
