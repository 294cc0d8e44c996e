"""Formats in which models write tool calls, one function each: text in, the calls and the text around them out.

A malformed call comes out as a call with an `error`; nothing is repaired, nothing is evaluated. Every function takes
time in proportion to the length of the text.
"""

from __future__ import annotations

import ast
import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gymcp.agents.tool_calls.strict_json import Malformed, excerpt, load, load_first
from gymcp.envs.episodes.call_validation import MAX_DEPTH
from gymcp.types import Json, Tool

MAX_CALLS = 128
"""Maximum number of calls in one answer; one more is read to know that there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """One call as the model wrote it."""

    name: str = ""
    arguments: Mapping[str, Json] = field(default_factory=dict)
    source: str = ""
    """The model's own text, if it is not a call."""
    error: str = ""
    """The reason why the text is not a call; empty for one that can be executed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """The calls of one answer and the text around them."""

    text: str
    calls: tuple[ParsedCall, ...] = ()


Format = Callable[[str, Sequence[Tool]], ParsedAnswer]


def hermes(text: str, tools: Sequence[Tool]) -> ParsedAnswer:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number: Qwen, Hermes and many more."""
    around: list[str] = []
    calls: list[ParsedCall] = []
    position = 0
    while len(calls) <= MAX_CALLS and (start := text.find(_OPEN, position)) >= 0:
        around.append(text[position:start])
        end = text.find(_CLOSE, start)
        inside = text[start + len(_OPEN) : end if end >= 0 else len(text)]
        calls.append(_from_json(inside.strip()))
        position = end + len(_CLOSE) if end >= 0 else len(text)
    around.append(text[position:])
    return ParsedAnswer(text="".join(around).strip(), calls=tuple(calls))


def llama(text: str, tools: Sequence[Tool]) -> ParsedAnswer:
    """``{"name": ..., "parameters": {...}}``, joined by semicolons, after ``<|python_tag|>`` or from the beginning.

    Without the tag, an answer is text unless it starts with a brace and has ``"name"`` near its beginning.
    """
    before, tag, rest = text.partition(_PYTHON_TAG)
    if not tag:
        before, rest = "", text
        if not _looks_like_a_call(text):
            return ParsedAnswer(text=text.strip())
    calls: list[ParsedCall] = []
    position = 0
    while len(calls) <= MAX_CALLS and (position := _skip(rest, position, "; \t\r\n,")) < len(rest):
        try:
            value, end = load_first(rest, position)
        except Malformed as error:
            calls.append(ParsedCall(source=rest[position:], error=str(error)))
            break
        calls.append(_from_value(value, rest[position:end]))
        position = end
    return ParsedAnswer(text=before.strip(), calls=tuple(calls))


def mistral(text: str, tools: Sequence[Tool]) -> ParsedAnswer:
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``, or ``[TOOL_CALLS]name[ARGS]{...}`` for each call."""
    before, tag, rest = text.partition(_MISTRAL_TAG)
    calls: list[ParsedCall] = []
    while tag and len(calls) <= MAX_CALLS:
        part, tag, rest = _up_to_next_tag(rest)
        if part.lstrip().startswith("["):
            calls += _from_list(part.strip())
        else:
            has_tag = "[ARGS]" in part.partition("{")[0]
            name, _, arguments = part.partition("[ARGS]") if has_tag else _split_before_brace(part)
            calls.append(_call_from_text(name.strip(), arguments.strip()))
    return ParsedAnswer(text=before.strip(), calls=tuple(calls))


def pythonic(text: str, tools: Sequence[Tool]) -> ParsedAnswer:
    """``[f(a=1), g(b="x")]`` as the whole answer: Llama 4, Gemma and others. Only literals are accepted as values."""
    body = text.strip().removeprefix("<|python_start|>").removesuffix("<|python_end|>").strip()
    if not _BEGINS_WITH_A_CALL.match(body) or not body.endswith("]"):
        return ParsedAnswer(text=text.strip())
    try:
        with warnings.catch_warnings():  # a model's odd escape sequence is no defect of ours
            warnings.simplefilter("ignore")
            tree = ast.parse(body, mode="eval").body
        items = tree.elts if isinstance(tree, ast.List) else [tree]
        return ParsedAnswer(text="", calls=tuple(_from_call(item) for item in items))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error) or "nested too deep"
        return ParsedAnswer(text="", calls=(ParsedCall(source=body, error=f"not a list of calls: {why}"),))


def compact(text: str, tools: Sequence[Tool]) -> ParsedAnswer:
    """``<|c|>name<|v|>value<|v|>value``: arguments by position, required ones first, each part in order of name.

    A value is text if the schema says string, else JSON; an empty value is an argument left out.
    """
    before, *parts = text.split(_CALL, MAX_CALLS + 1)
    schemas = {tool.name: tool.input_schema for tool in tools}
    calls = []
    for part in parts:
        name, *values = part.split(_VALUE)
        calls.append(_by_position(name.strip(), values, schemas.get(name.strip()), part))
    return ParsedAnswer(text=before.strip(), calls=tuple(calls))


FORMATS: dict[str, Format] = {
    "hermes": hermes,
    "llama": llama,
    "mistral": mistral,
    "pythonic": pythonic,
    "compact": compact,
}

_BEGINS_WITH_A_CALL = re.compile(r"\[\s*[A-Za-z_][\w.]*\(")
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_MISTRAL_TAG = "[TOOL_CALLS]"
_MISTRAL_VALUE = re.compile(r"\{|\[(?!ARGS\]|TOOL_CALLS\])")
_CALL, _VALUE = "<|c|>", "<|v|>"


def order_arguments(schema: Mapping[str, Json]) -> list[str]:
    """The names of the arguments in the order of the compact format."""
    names = sorted(_mapping(schema.get("properties")))
    required = schema.get("required")
    first = [name for name in names if isinstance(required, list) and name in required]
    return first + [name for name in names if name not in first]


def _from_json(source: str) -> ParsedCall:
    try:
        return _from_value(load(source), source)
    except Malformed as error:
        return ParsedCall(source=source, error=str(error))


def _from_value(value: Json, source: str) -> ParsedCall:
    """The call in a JSON value: an object with a name and arguments."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ParsedCall(source=source, error=f'a call is an object with a "name", not {excerpt(source)}')
    name = value["name"]
    arguments: Json = next((value[key] for key in ("arguments", "parameters") if key in value), {})
    if isinstance(arguments, str):  # some models write the object as a string
        return _call_from_text(name, arguments)
    if not isinstance(arguments, dict):
        return ParsedCall(name=name, source=source, error=f"the arguments must be an object, not {excerpt(source)}")
    return ParsedCall(name=name, arguments=arguments)


def _call_from_text(name: str, arguments: str) -> ParsedCall:
    try:
        value = load(arguments) if arguments else {}
    except Malformed as error:
        return ParsedCall(name=name, source=arguments, error=f"the arguments are {error}")
    if not name or not isinstance(value, dict):
        return ParsedCall(name=name, source=arguments, error="a call is a name and an object of arguments")
    return ParsedCall(name=name, arguments=dict(value))


def _from_list(source: str) -> list[ParsedCall]:
    try:
        values, _ = load_first(source)
    except Malformed as error:
        return [ParsedCall(source=source, error=str(error))]
    return [_from_value(value, source) for value in values]


def _up_to_next_tag(text: str) -> tuple[str, str, str]:
    """The text before the next tag, the tag, and the rest; a tag inside the first JSON value is part of the value."""
    value = _MISTRAL_VALUE.search(text)
    end = 0
    if value is not None and _MISTRAL_TAG not in text[: value.start()]:
        with contextlib.suppress(Malformed):
            _, end = load_first(text, value.start())
    part, tag, rest = text[end:].partition(_MISTRAL_TAG)
    return text[:end] + part, tag, rest


def _split_before_brace(part: str) -> tuple[str, str, str]:
    name, brace, rest = part.partition("{")
    return name, "", brace + rest


def _looks_like_a_call(text: str) -> bool:
    start = text.lstrip()
    return start.startswith("{") and '"name"' in start[:200]


def _skip(text: str, start: int, characters: str) -> int:
    while start < len(text) and text[start] in characters:
        start += 1
    return start


def _from_call(call: ast.expr) -> ParsedCall:
    if not isinstance(call, ast.Call):
        return ParsedCall(error="the answer must be a list of calls and nothing else")
    arguments: dict[str, Json] = {}
    name = ast.unparse(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ""
    if not name:
        return ParsedCall(error="a call starts with the name of a tool")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        return ParsedCall(name=name, error="arguments are given by name: f(a=1)")
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            return ParsedCall(name=name, error=f"the argument {keyword.arg!r} is given twice")
        try:
            arguments[keyword.arg] = _literal(keyword.value)
        except Malformed as error:
            return ParsedCall(name=name, error=f"argument {keyword.arg!r}: {error}")
    return ParsedCall(name=name, arguments=arguments)


_WORDS: dict[str, Json] = {"true": True, "false": False, "null": None}


def _literal(node: ast.expr, depth: int = 0) -> Json:
    """The JSON value of a literal. Raises Malformed for anything that would have to be evaluated."""
    if depth > MAX_DEPTH:
        raise Malformed(f"nested more than {MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if value is not True:
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            return dict(_pairs(keys, values, depth))
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
    raise Malformed("only literals are values")


def _pairs(keys: Sequence[ast.expr | None], values: Sequence[ast.expr], depth: int) -> Iterator[tuple[str, Json]]:
    seen: set[str] = set()
    for key, value in zip(keys, values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            raise Malformed("keys are strings")
        if key.value in seen:
            raise Malformed(f"the key {excerpt(key.value)} is given twice")
        seen.add(key.value)
        yield key.value, _literal(value, depth + 1)


def _by_position(name: str, values: Sequence[str], schema: Mapping[str, Json] | None, source: str) -> ParsedCall:
    if schema is None:  # no tool of that name: the environment says so, and which there are
        if name:
            return ParsedCall(name=name)
        return ParsedCall(source=source, error="a call starts with the name of a tool")
    names = order_arguments(schema)
    if len(values) > len(names):
        return ParsedCall(name=name, source=source, error=f"{len(values)} values for the arguments {', '.join(names)}")
    properties = _mapping(schema.get("properties"))
    arguments: dict[str, Json] = {}
    for key, value in zip(names, values, strict=False):
        if value == "":
            continue
        try:
            arguments[key] = _value(value, _mapping(properties[key]))
        except Malformed as error:
            return ParsedCall(name=name, source=source, error=f"argument {key!r}: {error}")
    return ParsedCall(name=name, arguments=arguments)


def _value(text: str, schema: Mapping[str, Json]) -> Json:
    if schema.get("type") == "string":
        return "" if text == '""' else text
    if "type" in schema:
        return load(text)
    try:
        return load(text)
    except Malformed:
        return text


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}
