"""Conversion of a model's text to an `Action`: the tool calls in it, and the text around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from gymcp.agents.prompts.rendering import describe_tool
from gymcp.agents.tool_calls.formats import FORMATS, MAX_CALLS, Format, ParsedAnswer, ParsedCall
from gymcp.errors import ConfigError
from gymcp.types import Action, Tool, ToolCall

MAX_CHARS = 400_000
"""Maximum number of characters of an answer that is parsed."""

_THOUGHT_ENDS = "</think>"
_THOUGHT_BEGINS = "<think>"


class CallIds:
    """Ids for the calls of one episode: nine letters and digits, because Mistral's templates take no others."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self) -> str:
        return f"call{next(self._numbers):05d}"

    def skip(self, calls: int) -> None:
        """Leave out the ids of this many calls, which the episode has already."""
        for _ in range(calls):
            next(self._numbers)


def parse_action(text: str, tools: Sequence[Tool], parse_calls: Format, new_id: Callable[[], str]) -> Action:
    """The action in the text; never raises, whatever the text is.

    A malformed call becomes a call with a `problem`, which the environment answers with an error. Thoughts in
    ``<think>`` tags are not part of the action: `split_thoughts` has them, and they stay in the tokens.
    """
    if len(text) > MAX_CHARS:
        problem = f"the answer is {len(text)} characters long; at most {MAX_CHARS} are read"
        return Action(tool_calls=(ToolCall(id=new_id(), name="", parse_error=problem),))
    parsed = parse_calls(split_thoughts(text)[1], tools)
    calls = [_tool_call(call, new_id()) for call in parsed.calls[:MAX_CALLS]]
    if len(parsed.calls) > MAX_CALLS:
        problem = f"more than {MAX_CALLS} calls in one answer: the rest is not read"
        calls.append(ToolCall(id=new_id(), name="", parse_error=problem))
    return Action(text=parsed.text, tool_calls=tuple(calls))


def split_thoughts(text: str) -> tuple[str, str]:
    """The thoughts in a text, without their tags, and the text behind the first ``</think>``.

    Without that tag, the thoughts are behind a ``<think>`` that is not closed, and the text is before it.
    """
    before, tag, after = text.partition(_THOUGHT_ENDS)
    if tag:
        return before.replace(_THOUGHT_BEGINS, "", 1).strip(), after
    said, _, thoughts = before.partition(_THOUGHT_BEGINS)
    return thoughts.strip(), said


def _tool_call(parsed: ParsedCall, id: str) -> ToolCall:
    if parsed.error:
        return ToolCall(id=id, name=parsed.name, arguments=parsed.source, parse_error=parsed.error)
    return ToolCall(id=id, name=parsed.name, arguments=parsed.arguments)


def choose_format(name: str | None, tokenizer: Any, who: str) -> Format:
    """The format called `name`; without a name, the one that the tokenizer's chat template shows its model.

    Raises ConfigError for an unknown name, and if the template does not show a known format.
    """
    if name is not None:
        if name not in FORMATS and name != TRANSFORMERS:
            raise ConfigError(f"no tool format '{name}'; have {', '.join((*FORMATS, TRANSFORMERS))}")
        return FORMATS[name] if name in FORMATS else response_format(tokenizer, who)
    if getattr(tokenizer, "response_template", None):
        return response_format(tokenizer, who)
    template = str(tokenizer.chat_template)
    for mark, format_name in _MARKS:
        if mark in template:
            return FORMATS[format_name]
    if "tools" not in template:
        raise ConfigError(f"{who}: its chat template takes no tools, so the model cannot be offered any")
    raise ConfigError(
        f"{who}: its chat template does not show how it writes tool calls; choose with --tool-format:"
        f" {', '.join((*FORMATS, TRANSFORMERS))}"
    )


TRANSFORMERS = "transformers"
"""Name of the format that uses the tokenizer's own `response_template`."""

# The first mark found in the template decides. Qwen3-Coder writes XML between hermes tags, which is another format.
_MARKS = (
    ("<|c|>", "compact"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>\\n{", "hermes"),
    ("<tool_call>\n{", "hermes"),
    ("<tool_call>{", "hermes"),
    ("<|python_tag|>", "llama"),
    ('"parameters":', "llama"),
    ("python_start", "pythonic"),
    ("[func_name1(", "pythonic"),
)


def response_format(tokenizer: Any, who: str) -> Format:
    """The format that transformers itself reads. Raises ConfigError if the tokenizer has no `response_template`."""
    if not getattr(tokenizer, "response_template", None):
        raise ConfigError(f"{who}: its tokenizer has no response_template, which '--tool-format transformers' needs")

    def parse(text: str, tools: Sequence[Tool]) -> ParsedAnswer:
        try:
            message = tokenizer.parse_response(text, prefix="", tools=[describe_tool(tool) for tool in tools])
        except Exception as error:  # the boundary to a parser that the model's author wrote
            return ParsedAnswer(text="", calls=(ParsedCall(source=text, error=f"cannot be read: {error}"),))
        return _from_message(message if isinstance(message, Mapping) else {}, text)

    return parse


def _from_message(message: Mapping[str, Any], text: str) -> ParsedAnswer:
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        name, arguments = function.get("name"), function.get("arguments", {})
        if isinstance(name, str) and isinstance(arguments, Mapping):
            calls.append(ParsedCall(name=name, arguments=arguments))
        else:
            calls.append(ParsedCall(source=text, error="a call is a name and an object of arguments"))
    content = message.get("content")
    return ParsedAnswer(text=content.strip() if isinstance(content, str) else "", calls=tuple(calls))
