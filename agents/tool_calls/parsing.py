"""From what a model wrote to an `Action`: the calls it makes, and what it says around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from gymcp.agents.prompts.rendering import function
from gymcp.agents.tool_calls.formats import FORMATS, MAX_CALLS, Format, Parsed, Written
from gymcp.errors import ConfigError
from gymcp.types import Action, Tool, ToolCall

MAX_CHARS = 400_000
"""Of one answer that is looked at."""

_THOUGHT_ENDS = "</think>"
_THOUGHT_BEGINS = "<think>"


class CallIds:
    """Ids for the calls of one episode: nine letters and digits, because Mistral's templates take no others."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self) -> str:
        return f"call{next(self._numbers):05d}"


def parse_action(text: str, tools: Sequence[Tool], read: Format, new_id: Callable[[], str]) -> Action:
    """The action that the text stands for; never raises, whatever it is.

    What was meant as a call and is none is a call with a `parse_error`, which the environment answers with an error.
    Thoughts in ``<think>`` tags are neither said nor called; they stay in the tokens.
    """
    if len(text) > MAX_CHARS:
        problem = f"the answer is {len(text)} characters long; at most {MAX_CHARS} are read"
        return Action(tool_calls=(ToolCall(id=new_id(), name="", parse_error=problem),))
    spoken = without_thoughts(text)
    parsed = read(spoken, tools)
    calls = [_tool_call(call, new_id()) for call in parsed.calls[:MAX_CALLS]]
    if len(parsed.calls) > MAX_CALLS:
        problem = f"more than {MAX_CALLS} calls in one answer: the rest is not read"
        calls.append(ToolCall(id=new_id(), name="", parse_error=problem))
    return Action(text=parsed.text, tool_calls=tuple(calls))


def without_thoughts(text: str) -> str:
    """What is said: behind the first ``</think>`` where there is one; nothing where a thought is not closed."""
    before, tag, after = text.partition(_THOUGHT_ENDS)
    if tag:
        return after
    return before.partition(_THOUGHT_BEGINS)[0]


def _tool_call(written: Written, id: str) -> ToolCall:
    if written.problem:
        return ToolCall(id=id, name=written.name, arguments=written.source, parse_error=written.problem)
    return ToolCall(id=id, name=written.name, arguments=written.arguments)


def choose_format(name: str | None, tokenizer: Any, who: str) -> Format:
    """The format called `name`, or the one that the tokenizer's chat template teaches its model.

    Raises ConfigError for an unknown name, and where the template does not say.
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
"""The tokenizer's own `response_template`."""

# The first mark that is in the template decides. Qwen3-Coder writes XML between hermes tags, which is another format.
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
    """How transformers itself reads the model's answers. Raises ConfigError where the tokenizer does not say."""
    if not getattr(tokenizer, "response_template", None):
        raise ConfigError(f"{who}: its tokenizer has no response_template, which '--tool-format transformers' needs")

    def read(text: str, tools: Sequence[Tool]) -> Parsed:
        try:
            message = tokenizer.parse_response(text, prefix="", tools=[function(tool) for tool in tools])
        except Exception as error:  # the boundary to a parser that the model's author wrote
            return Parsed(text="", calls=(Written(source=text, problem=f"cannot be read: {error}"),))
        return _from_message(message if isinstance(message, Mapping) else {}, text)

    return read


def _from_message(message: Mapping[str, Any], text: str) -> Parsed:
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        name, arguments = function.get("name"), function.get("arguments", {})
        if isinstance(name, str) and isinstance(arguments, Mapping):
            calls.append(Written(name=name, arguments=arguments))
        else:
            calls.append(Written(source=text, problem="a call is a name and an object of arguments"))
    content = message.get("content")
    return Parsed(text=content.strip() if isinstance(content, str) else "", calls=tuple(calls))
