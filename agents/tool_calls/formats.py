"""How models write tool calls, one function per format: text in, the text around the calls and the calls out.

What was meant as a call and is none comes out as a call with a `problem`; nothing is repaired, nothing is evaluated.
Every function takes time in proportion to the text.
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
"""In one answer; one more is read, so that it is known that there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One call as it was written."""

    name: str = ""
    arguments: Mapping[str, Json] = field(default_factory=dict)
    source: str = ""
    """What the model wrote, where that is no call."""
    problem: str = ""
    """Why it is no call; empty for one that can be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    text: str
    """What stands around the calls."""
    calls: tuple[Written, ...] = ()


Format = Callable[[str, Sequence[Tool]], Parsed]


def hermes(text: str, tools: Sequence[Tool]) -> Parsed:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number: Qwen, Hermes and many more."""
    around: list[str] = []
    calls: list[Written] = []
    reached = 0
    while len(calls) <= MAX_CALLS and (start := text.find(_OPEN, reached)) >= 0:
        around.append(text[reached:start])
        end = text.find(_CLOSE, start)
        inside = text[start + len(_OPEN) : end if end >= 0 else len(text)]
        calls.append(_from_json(inside.strip()))
        reached = end + len(_CLOSE) if end >= 0 else len(text)
    around.append(text[reached:])
    return Parsed(text="".join(around).strip(), calls=tuple(calls))


def llama(text: str, tools: Sequence[Tool]) -> Parsed:
    """``{"name": ..., "parameters": {...}}``, joined by semicolons, after ``<|python_tag|>`` or from the beginning.

    An answer that merely starts with a brace is text, unless its first object has a name and arguments.
    """
    before, tag, rest = text.partition(_PYTHON_TAG)
    if not tag:
        before, rest = "", text
        if not _looks_like_a_call(text):
            return Parsed(text=text.strip())
    calls: list[Written] = []
    reached = 0
    while len(calls) <= MAX_CALLS and (reached := _skip(rest, reached, "; \t\r\n,")) < len(rest):
        try:
            value, end = load_first(rest, reached)
        except Malformed as error:
            calls.append(Written(source=rest[reached:], problem=str(error)))
            break
        calls.append(_from_value(value, rest[reached:end]))
        reached = end
    return Parsed(text=before.strip(), calls=tuple(calls))


def mistral(text: str, tools: Sequence[Tool]) -> Parsed:
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``, or ``[TOOL_CALLS]name[ARGS]{...}`` for each call."""
    before, tag, rest = text.partition(_MISTRAL_TAG)
    calls: list[Written] = []
    while tag and len(calls) <= MAX_CALLS:
        part, tag, rest = _up_to_next_tag(rest)
        if part.lstrip().startswith("["):
            calls += _from_list(part.strip())
        else:
            marked = "[ARGS]" in part.partition("{")[0]
            name, _, arguments = part.partition("[ARGS]") if marked else _split_before_brace(part)
            calls.append(_named(name.strip(), arguments.strip()))
    return Parsed(text=before.strip(), calls=tuple(calls))


def pythonic(text: str, tools: Sequence[Tool]) -> Parsed:
    """``[f(a=1), g(b="x")]`` as the whole answer: Llama 4, Gemma and others. Only literals are taken as values."""
    body = text.strip().removeprefix("<|python_start|>").removesuffix("<|python_end|>").strip()
    if not _BEGINS_WITH_A_CALL.match(body) or not body.endswith("]"):
        return Parsed(text=text.strip())
    try:
        with warnings.catch_warnings():  # a model's odd escape sequence is no defect of ours
            warnings.simplefilter("ignore")
            tree = ast.parse(body, mode="eval").body
        items = tree.elts if isinstance(tree, ast.List) else [tree]
        return Parsed(text="", calls=tuple(_from_call(item) for item in items))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error) or "nested too deep"
        return Parsed(text="", calls=(Written(source=body, problem=f"not a list of calls: {why}"),))


def compact(text: str, tools: Sequence[Tool]) -> Parsed:
    """``<|c|>name<|v|>value<|v|>value``: arguments by position, required ones first, each part in order of name.

    A value is text where the schema says string, else JSON; an empty one is an argument left out.
    """
    before, *parts = text.split(_CALL, MAX_CALLS + 1)
    schemas = {tool.name: tool.input_schema for tool in tools}
    calls = []
    for part in parts:
        name, *values = part.split(_VALUE)
        calls.append(_by_position(name.strip(), values, schemas.get(name.strip()), part))
    return Parsed(text=before.strip(), calls=tuple(calls))


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


def positions(schema: Mapping[str, Json]) -> list[str]:
    """The order of arguments in the compact format."""
    names = sorted(_mapping(schema.get("properties")))
    required = schema.get("required")
    first = [name for name in names if isinstance(required, list) and name in required]
    return first + [name for name in names if name not in first]


def _from_json(source: str) -> Written:
    try:
        return _from_value(load(source), source)
    except Malformed as error:
        return Written(source=source, problem=str(error))


def _from_value(value: Json, source: str) -> Written:
    """The call that an object with a name and arguments is."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Written(source=source, problem=f'a call is an object with a "name", not {excerpt(source)}')
    name = value["name"]
    arguments: Json = next((value[key] for key in ("arguments", "parameters") if key in value), {})
    if isinstance(arguments, str):  # some models write the object as a string
        return _named(name, arguments)
    if not isinstance(arguments, dict):
        return Written(name=name, source=source, problem=f"the arguments must be an object, not {excerpt(source)}")
    return Written(name=name, arguments=arguments)


def _named(name: str, arguments: str) -> Written:
    try:
        value = load(arguments) if arguments else {}
    except Malformed as error:
        return Written(name=name, source=arguments, problem=f"the arguments are {error}")
    if not name or not isinstance(value, dict):
        return Written(name=name, source=arguments, problem="a call is a name and an object of arguments")
    return Written(name=name, arguments=dict(value))


def _from_list(source: str) -> list[Written]:
    try:
        values, _ = load_first(source)
    except Malformed as error:
        return [Written(source=source, problem=str(error))]
    return [_from_value(value, source) for value in values]


def _up_to_next_tag(text: str) -> tuple[str, str, str]:
    """What comes before the next tag, the tag, and what follows; a tag inside of the first JSON value is part of it."""
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


def _from_call(call: ast.expr) -> Written:
    if not isinstance(call, ast.Call):
        return Written(problem="the answer must be a list of calls and nothing else")
    arguments: dict[str, Json] = {}
    name = ast.unparse(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ""
    if not name:
        return Written(problem="a call starts with the name of a tool")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        return Written(name=name, problem="arguments are given by name: f(a=1)")
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            return Written(name=name, problem=f"the argument {keyword.arg!r} is given twice")
        try:
            arguments[keyword.arg] = _literal(keyword.value)
        except Malformed as error:
            return Written(name=name, problem=f"argument {keyword.arg!r}: {error}")
    return Written(name=name, arguments=arguments)


_WORDS: dict[str, Json] = {"true": True, "false": False, "null": None}


def _literal(node: ast.expr, depth: int = 0) -> Json:
    """The JSON value that a literal stands for. Raises Malformed for anything that would have to be evaluated."""
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


def _by_position(name: str, values: Sequence[str], schema: Mapping[str, Json] | None, source: str) -> Written:
    if schema is None:  # no tool of that name: the environment says so, and which there are
        return Written(name=name) if name else Written(source=source, problem="a call starts with the name of a tool")
    names = positions(schema)
    if len(values) > len(names):
        return Written(name=name, source=source, problem=f"{len(values)} values for the arguments {', '.join(names)}")
    properties = _mapping(schema.get("properties"))
    arguments: dict[str, Json] = {}
    for key, value in zip(names, values, strict=False):
        if value == "":
            continue
        try:
            arguments[key] = _value(value, _mapping(properties[key]))
        except Malformed as error:
            return Written(name=name, source=source, problem=f"argument {key!r}: {error}")
    return Written(name=name, arguments=arguments)


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
