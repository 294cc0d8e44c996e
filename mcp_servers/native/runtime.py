"""A stdio MCP server library in one file: standard library only, Python 3.9 or newer, imported in milliseconds.

The file is mounted alone into a sandbox, beside the server program that imports it, so it imports nothing of gymcp.
Modules of the standard library that are slow to import (json, re, typing and their own imports take 14 ms, while the
interpreter itself takes 7) are imported when they are first needed, which for a plain server is never. The file uses
neither asyncio nor inspect nor dataclasses.

::

    server = Server("notes")

    @server.setup
    def setup(initial_state, seed): ...

    @server.tool(read_only=True)
    def get(key: str, limit: int = 10) -> str:
        "Read a note."

    server.run()

Wire: JSON-RPC 2.0, one message per line. A request that carries the 2026-07-28 envelope in `params._meta` is answered
in that protocol; any other request in the handshake protocols of 2024-11-05 to 2025-11-25. There is no session to lock.

A mistake of the agent (an unknown tool, bad arguments, a tool that raised) gives a result with `isError`. A mistake of
the client gives a JSON-RPC error. Neither ends the process. One thread reads, calls and answers in turn, so the process
can be forked between two requests.
"""

from __future__ import annotations

import math
import posix
import sys
from _json import encode_basestring, encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False  # typing's own, without typing
if TYPE_CHECKING:
    import enum
    import json
    import re
    import signal
    import types
    import typing
    from collections.abc import Callable, Iterator, Mapping
    from hashlib import sha256
    from typing import Any, BinaryIO, Literal, TypeVar, Unpack

    Json = Any
    F = TypeVar("F", bound=Callable[..., Any])

    class ToolOptions(typing.TypedDict, total=False):
        name: str
        """Name of the tool, by default that of the function."""
        title: str
        """Title for people; the model reads the name."""
        description: str
        """Description, by default the docstring up to its first section."""
        input_schema: Json
        """JSON Schema of the arguments, by default derived from the annotations."""
        read_only: bool
        destructive: bool
        idempotent: bool

else:
    import _signal as signal  # the module signal creates enumerations, which takes time

    try:  # the interpreter's own SHA-256: hashlib would load OpenSSL, which takes 3 ms
        from _sha2 import sha256  # from 3.12
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:
            from hashlib import sha256

    class _LazyModule:
        """A module that is imported at the first use of one of its attributes."""

        def __init__(self, name):
            self._name = name

        def __getattr__(self, key):
            attribute = getattr(__import__(self._name), key)
            setattr(self, key, attribute)
            return attribute

    enum, json, re, types, typing = map(_LazyModule, ("enum", "json", "re", "types", "typing"))

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest message in bytes; a longer one is skipped and answered with a parse error."""
MAX_DEPTH = 64
"""Deepest nesting of arguments, and of schemas applied to one value."""
MAX_PATTERN_SUBJECT_CHARS = 10_000
"""Longest string, in characters, that a `pattern` is tried on, which bounds the cost of backtracking."""
MAX_ERROR_CHARS = 4_000
"""Longest message of an unexpected exception, in characters, that reaches the agent."""
MAX_INT_DIGITS = 4_000
"""Most digits of an integer. It is below Python's own limit for int(), which would make the whole message unreadable,
and so leave it without an answer."""
MAX_VALUE_DEPTH = 100
"""Deepest nesting of states and of structured results: the reader at the other end stops below 200."""

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS = ("2026-07-28",)
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"
STATE_KEY = "gymcp/stateKey"
TIMEOUT_KEY = "gymcp/callTimeout"
"""Key in the `_meta` of a call: seconds after which the call is interrupted and gives an error result. One long call
into C, such as ``sum``, cannot be interrupted before it returns."""
CALL_LIMIT = "the limit of a call (to raise it: EpisodeLimits(call_timeout_s=...) of the environment)"
"""Words for the limit in the error of a call that exceeds it."""
STATE_WITHIN_KEY = "gymcp/stateWithin"
"""Key in the `_meta` of a call: the result includes the state if its canonical JSON has at most so many characters."""
RESULT_STATE_KEY = "gymcp/state"
"""Key in the `_meta` of a result with the state, if the call asked for it."""
LINE_KEY = "lineBytes"
"""Key in the parameters of a setup: longest answer in bytes. An error result replaces a longer result."""
_ALARM_PERIOD_S = 1.0
"""Seconds between two interruptions of a call that goes on after its timeout."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SETUP_FAILED = -32603
UNSUPPORTED_VERSION = -32022
STATE_UNAVAILABLE = -32050
"""Error code for a state that cannot be sent because of a tool's work: it is not JSON, too deep or too long, or the
state function raised."""


class ToolError(Exception):
    """An error that a tool raises; its message goes to the agent unchanged, as an error result."""


class ProtocolError(Exception):
    """A JSON-RPC error: the client broke the protocol, or the server cannot answer the request."""

    def __init__(self, code: int, message: str, details: Json = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


class _CallTimeout(BaseException):
    """Raised in a tool by the alarm; not an Exception, so that tools do not catch it with their own errors."""


# --------------------------------------------------------------------------------------------------------------- JSON


def _dumps(
    value: Json, *, sort_keys: bool = False, compact: bool = False, ascii: bool = False, nan: bool = False
) -> str:
    """`json.dumps`, through the C encoder that it uses, without the import of json."""
    text = encode_basestring_ascii if ascii else encode_basestring
    separators = (":", ",") if compact else (": ", ", ")
    return "".join(make_encoder({}, _no_json, text, None, *separators, sort_keys, False, nan)(value, 0))


def _no_json(value: object) -> None:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class _ScannerContext:
    """The attributes of a JSONDecoder that json's scanner reads."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_constant = {"-Infinity": -math.inf, "Infinity": math.inf, "NaN": math.nan}.__getitem__

    def __init__(self, parse_int: Callable[[str], Json]) -> None:
        self.parse_int = parse_int
        self.memo: dict[str, str] = {}
        self.scan = make_scanner(self)  # type: ignore[arg-type]  # declared for a JSONDecoder only


def _loads(text: str, context: _ScannerContext) -> Json:
    """`json.loads`, through the C scanner that it uses, without the import of json."""
    text = text.strip(" \t\n\r")
    try:
        value, end = context.scan(text, 0)
    except StopIteration:
        end = -1
    if end != len(text):
        return json.JSONDecoder(parse_int=context.parse_int).decode(text)  # raises, with a precise message
    return value


def _parse_int(text: str) -> int | float:
    return int(text) if len(text) <= MAX_INT_DIGITS else math.inf


def _parse_bounded_int(text: str) -> int:
    if len(text) > MAX_INT_DIGITS:
        raise ValueError(f"an integer has more than {MAX_INT_DIGITS} digits")
    return int(text)


_PLAIN = _ScannerContext(int)
_BOUNDED = _ScannerContext(_parse_bounded_int)
_get_max_int_digits = getattr(sys, "get_int_max_str_digits", lambda: 0)
"""Python's own limit on digits, by default 4,300; 0 for no limit, as before 3.11 or if the program has lifted it."""


def _select_context() -> _ScannerContext:
    return _PLAIN if 0 < _get_max_int_digits() <= 4300 else _BOUNDED


_WIRE = _ScannerContext(_parse_int)
"""Context for requests. It accepts NaN and endless integers, so that the request keeps its id and gets an answer;
`find_unsafe` refuses them."""


# ---------------------------------------------------------------------------------------------------- canonical state


def canonical_json(value: Json) -> str:
    """The one text of a JSON value: sorted keys, no spaces, characters unescaped.

    Keys that are not strings become strings first, as on the wire, so a value and its round trip agree. 1 and 1.0 stay
    different. Raises ValueError for NaN, infinities, endless integers and nesting deeper than `MAX_VALUE_DEPTH`,
    TypeError for values that JSON cannot hold.
    """
    return _canonical(value)[0]


def _canonical(value: Json) -> tuple[str, Json]:
    """(canonical text, the value that a reader of the text gets)."""
    text = _dumps(value, ascii=True)
    plain = _loads(text, _select_context())
    if _is_too_deep(text):
        raise ValueError(f"nested more than {MAX_VALUE_DEPTH} levels deep")
    return _dumps(plain, sort_keys=True, compact=True), plain


_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURAL = bytes(set(range(256)) - set(b'"[]{}'))


def _is_too_deep(text: str) -> bool:
    """True for JSON text that is nested more than `MAX_VALUE_DEPTH` deep; faster than a walk through the value."""
    if text.count("[") + text.count("{") <= MAX_VALUE_DEPTH:
        return False
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    marks = text.encode(errors="replace").translate(_BRACES_TO_BRACKETS, _NOT_STRUCTURAL).replace(b'""', b"")
    if b'"' in marks:  # some strings contain brackets
        marks = b"".join(marks.split(b'"')[::2])
    for _ in range(MAX_VALUE_DEPTH):
        marks = marks.replace(b"[]", b"")  # the innermost level
        if not marks:
            return False
    return True


def state_key(state: Json) -> str:
    """SHA-256 of the canonical JSON in hex. Raises as `canonical_json` does, and ValueError for lone surrogates."""
    return sha256(canonical_json(state).encode()).hexdigest()


# ------------------------------------------------------------------------------------------- schemas from annotations

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_CONTAINERS = (list, tuple, dict)
_TYPES_BY_NAME = {kind.__name__: kind for kind in (str, int, float, bool, *_CONTAINERS)}
_OPTIONAL_KEYS = ("typing.NotRequired", "typing.Required")  # from 3.11


def schema_of(hint: Any) -> dict[str, Json]:
    """The JSON Schema of a type annotation. Raises TypeError for a type that has none.

    In `Annotated`, a string is a description and a dict has further keywords. Values reach the tool as plain JSON
    values: a tuple as a list, an Enum as its value.
    """
    if hint is None or (isinstance(hint, type) and hint in _SCALARS):
        return {"type": _SCALARS[type(None) if hint is None else hint]}
    if hint in _CONTAINERS:
        return _container_schema(hint, ())
    if hint is typing.Any:
        return {}
    if hasattr(hint, "__total__"):
        return _typed_dict_schema(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum_schema([member.value for member in hint])
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is typing.Annotated:
        schema = schema_of(args[0])
        for note in args[1:]:
            schema.update({"description": note} if isinstance(note, str) else note if isinstance(note, dict) else {})
        return schema
    if origin is typing.Literal:
        return _enum_schema(list(args))
    if origin in (typing.Union, getattr(types, "UnionType", typing.Union)):  # X | Y exists from 3.10
        return {"anyOf": [schema_of(arg) for arg in args]}
    if origin in _CONTAINERS:
        return _container_schema(origin, args)
    raise TypeError(f"{hint!r} has no JSON Schema")


def _enum_schema(values: list[Json]) -> dict[str, Json]:
    kinds = {type(value) for value in values}
    return {"type": _SCALARS[kinds.pop()], "enum": values} if len(kinds) == 1 else {"enum": values}


def _container_schema(origin: Any, args: tuple[Any, ...]) -> dict[str, Json]:
    if origin is dict:
        if args and args[0] is not str:
            raise TypeError(f"dict[{args[0]!r}, ...] has no JSON Schema: keys are strings")
        values = schema_of(args[1]) if args else {}
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    if origin is tuple and args and args[-1] is not Ellipsis:
        size = len(args)
        return {"type": "array", "prefixItems": [schema_of(a) for a in args], "minItems": size, "maxItems": size}
    items = schema_of(args[0]) if args else {}
    return {"type": "array", "items": items} if items else {"type": "array"}


def _typed_dict_schema(hint: Any) -> dict[str, Json]:
    properties: dict[str, Json] = {}
    required = set(hint.__required_keys__)
    for name, field in typing.get_type_hints(hint, include_extras=True).items():
        marker = str(typing.get_origin(field))
        if marker in _OPTIONAL_KEYS:  # if annotations are strings, __required_keys__ does not know the marker
            (required.discard if marker == "typing.NotRequired" else required.add)(name)
            field = typing.get_args(field)[0]  # noqa: PLW2901
        properties[name] = schema_of(field)
    return _object_schema(properties, [name for name in properties if name in required])


def _object_schema(properties: dict[str, Json], required: list[str]) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return {**schema, "additionalProperties": False}


def parameters_schema(fn: Callable[..., Any], *, skip_self: bool = False) -> dict[str, Json]:
    """The input schema of a typed function: its parameters by name, described by the docstring's `Args:`."""
    code = getattr(fn, "__code__", None)
    if code is None or code.co_posonlyargcount or code.co_flags & 0x0C:  # 0x0C: *args or **kwargs
        raise TypeError("needs named parameters only, or an input_schema")
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = getattr(fn, "__defaults__", None) or ()
    defaults = dict(zip(names[code.co_argcount - len(values) : code.co_argcount], values))  # noqa: B905 (3.9 has no strict=)
    defaults.update(getattr(fn, "__kwdefaults__", None) or {})
    hints = _hints(fn)
    descriptions = _parse_docstring(fn.__doc__)[1]
    properties: dict[str, Json] = {}
    for name in names[1:] if skip_self or hasattr(fn, "__self__") else names:
        schema = schema_of(hints[name]) if name in hints else {}
        if name in descriptions:
            schema.setdefault("description", descriptions[name])
        if name in defaults:
            default = defaults[name]
            if type(default) not in _SCALARS and isinstance(default, enum.Enum):
                default = default.value
            try:
                schema["default"] = _loads(_dumps(default, ascii=True), _PLAIN)
            except (TypeError, ValueError):
                pass  # the schema leaves out a default that is not JSON
        properties[name] = schema
    return _object_schema(properties, [name for name in properties if name not in defaults])


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """The evaluated annotations of a function, without the import of `typing` if all are names of plain types."""
    names, known = dict(getattr(fn, "__annotations__", {})), getattr(fn, "__globals__", {})
    if None not in (getattr(fn, "__defaults__", None) or ()):  # before 3.11 such a parameter may be None
        plain = {
            key: _TYPES_BY_NAME.get(name) for key, name in names.items() if isinstance(name, str) and name not in known
        }
        if len(plain) == len(names) and None not in plain.values():
            return plain
    return typing.get_type_hints(fn, include_extras=True)


_PARAMETER_SECTIONS = ("Args:", "Arguments:", "Parameters:")
_SECTIONS = (*_PARAMETER_SECTIONS, "Returns:", "Yields:", "Raises:", "Example:", "Examples:", "Note:", "Notes:")
_PARAMETER = r"( +)\*{0,2}(\w+) *(?:\([^)]*\))?: *(.*)"


def _parse_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """(text before the first section, {parameter: its description in `Args:`})."""
    first, *rest = (doc or "").expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    lines = [first.strip(), *(line[margin:].rstrip() for line in rest)]
    head = next((i for i, line in enumerate(lines) if line in _SECTIONS), len(lines))
    descriptions: dict[str, str] = {}
    section, indent, current = "", "", ""
    for line in lines[head:]:
        if line in _SECTIONS:
            section, indent, current = line, "", ""
        elif section in _PARAMETER_SECTIONS and line:
            entry = re.match(_PARAMETER, line)
            if entry and entry.group(1) == (indent or entry.group(1)):
                indent, current, descriptions[entry.group(2)] = entry.group(1), entry.group(2), entry.group(3)
            elif current:
                descriptions[current] = f"{descriptions[current]} {line.strip()}".strip()
    return "\n".join(lines[:head]).strip(), descriptions


# --------------------------------------------------------------------------------------------- checking against schemas

_UNSUPPORTED = frozenset(
    "not if then else patternProperties propertyNames dependentRequired dependentSchemas contains minContains "  # noqa: SIM905
    "maxContains uniqueItems unevaluatedItems unevaluatedProperties minProperties maxProperties multipleOf "
    "$dynamicRef $anchor".split()
)
_JSON_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_LIMITS: dict[str, tuple[str, str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", "at least {}", lambda value, limit: value >= limit),
    "maximum": ("number", "at most {}", lambda value, limit: value <= limit),
    "exclusiveMinimum": ("number", "more than {}", lambda value, limit: value > limit),
    "exclusiveMaximum": ("number", "less than {}", lambda value, limit: value < limit),
    "minLength": ("string", "at least {} characters", lambda value, limit: len(value) >= limit),
    "maxLength": ("string", "at most {} characters", lambda value, limit: len(value) <= limit),
    "minItems": ("array", "at least {} items", lambda value, limit: len(value) >= limit),
    "maxItems": ("array", "at most {} items", lambda value, limit: len(value) <= limit),
}
"""Keyword -> (type that it applies to, words for an error message, test)."""


class _Position:
    """Position of a check: the schema document, the path in the value, the number of schemas above."""

    __slots__ = ("depth", "path", "root")

    def __init__(self, root: Json, path: tuple[Any, ...] = (), depth: int = 0) -> None:
        self.root = root
        self.path = path
        """(path of the parent, step): a linked list, because only a violation needs the whole path."""
        self.depth = depth

    def step(self, step: str | int) -> _Position:
        return _Position(self.root, (self.path, step), self.depth + 1)

    def deeper(self) -> _Position:
        return _Position(self.root, self.path, self.depth + 1)

    def message_for(self, expected: str, value: Json) -> str:
        return f"{_path_text(self.path)}: expected {expected}, got {_describe_value(value)}"


def find_violation(value: Json, schema: Json) -> str | None:
    """The first violation of the schema ("$.limit: expected integer, got string 'ten'"), or None.

    The check covers type, enum, const, the bounds on numbers, strings and arrays, pattern, properties, required,
    additionalProperties, items, prefixItems, anyOf, oneOf, allOf and local $ref; `check_schema` refuses the rest.
    """
    return next(_violations(value, schema, _Position(schema)), None)


def check_schema(schema: Json, root: Json = None) -> None:
    """Raise ValueError for a keyword that `find_violation` does not know, a broken pattern or a broken $ref."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"a schema is an object or a boolean, not {_describe_value(schema)}")
    root = schema if root is None else root
    unsupported = sorted(_UNSUPPORTED & schema.keys())
    if unsupported:
        raise ValueError(f"schema keywords {', '.join(unsupported)} are not supported")
    unknown = sorted({*_types(schema)} - _JSON_TYPES)
    if unknown:
        raise ValueError(f"schema types {', '.join(unknown)} are unknown; have {', '.join(sorted(_JSON_TYPES))}")
    if "$ref" in schema:
        _resolve(schema["$ref"], root)
    if "pattern" in schema:
        try:
            re.compile(schema["pattern"])
        except re.error as error:
            raise ValueError(f"pattern {schema['pattern']!r}: {error}") from error
    children = [schema[key] for key in ("items", "additionalProperties") if key in schema]
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        children.extend(schema.get(key, ()))
    for key in ("properties", "$defs", "definitions"):
        children.extend(schema.get(key, {}).values())
    for child in children:
        check_schema(child, root)


def _violations(value: Json, schema: Json, at: _Position) -> Iterator[str]:
    if isinstance(schema, bool):
        if not schema:
            yield at.message_for("nothing here", value)
        return
    if at.depth > 2 * MAX_DEPTH:
        yield f"{_path_text(at.path)}: nested too deeply to check"
        return
    if "$ref" in schema:
        yield from _violations(value, _resolve(schema["$ref"], at.root), at.deeper())
    kinds = _types(schema)
    if kinds and not any(_has_type(value, kind) for kind in kinds):
        yield at.message_for(" or ".join(kinds), value)
    if "enum" in schema and not any(_json_equal(value, choice) for choice in schema["enum"]):
        yield at.message_for(f"one of {_abbreviate(schema['enum'])}", value)
    if "const" in schema and not _json_equal(value, schema["const"]):
        yield at.message_for(_abbreviate(schema["const"]), value)
    for keyword, limit in schema.items():
        kind, words, holds = _LIMITS.get(keyword, ("", "", _json_equal))
        if kind and _has_type(value, kind) and not holds(value, limit):
            yield at.message_for(words.format(limit), value)
    if isinstance(value, str) and "pattern" in schema:
        if len(value) > MAX_PATTERN_SUBJECT_CHARS:
            yield at.message_for(f"at most {MAX_PATTERN_SUBJECT_CHARS} characters, because a pattern applies", value)
        elif not re.search(schema["pattern"], value):
            yield at.message_for(f"a match of the pattern {schema['pattern']}", value)
    if isinstance(value, dict):
        yield from _object_violations(value, schema, at)
    elif isinstance(value, list):
        yield from _array_violations(value, schema, at)
    yield from _subschema_violations(value, schema, at)


def _subschema_violations(value: Json, schema: Json, at: _Position) -> Iterator[str]:
    for part in schema.get("allOf", ()):
        yield from _violations(value, part, at.deeper())
    for keyword in ("anyOf", "oneOf"):
        found = [next(_violations(value, part, at.deeper()), None) for part in schema.get(keyword, ())]
        hold = found.count(None)
        if found and not hold:
            yield "; or ".join(filter(None, found))
        elif hold > 1 and keyword == "oneOf":
            yield at.message_for(f"exactly one of {len(found)} alternatives to hold ({hold} do)", value)


def _array_violations(value: list[Json], schema: Json, at: _Position) -> Iterator[str]:
    prefix, rest = schema.get("prefixItems", ()), schema.get("items", True)
    for i, item in enumerate(value if rest is not True else value[: len(prefix)]):
        yield from _violations(item, prefix[i] if i < len(prefix) else rest, at.step(i))


def _object_violations(value: dict[str, Json], schema: Json, at: _Position) -> Iterator[str]:
    properties = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{_path_text((at.path, name))}: required, but missing"
    for name, item in value.items():
        if name in properties:
            yield from _violations(item, properties[name], at.step(name))
        elif rest is False:
            names = ", ".join(properties) or "none"
            yield f"{_path_text((at.path, name))}: unknown name, expected one of: {names}"
        else:
            yield from _violations(item, rest, at.step(name))


def _resolve(ref: str, root: Json) -> Json:
    node = root
    try:
        fragment, *parts = ref.split("/")
        for part in parts:
            node = node[part.replace("~1", "/").replace("~0", "~")]
    except (KeyError, TypeError, AttributeError):
        fragment = ""
    if fragment != "#":
        raise ValueError(f"$ref {ref!r} leads nowhere; only #/... is followed")
    return node


def _types(schema: Json) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def _has_type(value: Json, kind: str) -> bool:
    if kind == "integer":
        return _has_type(value, "number") and (isinstance(value, int) or value.is_integer())
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return _type_name(value) == kind


def _type_name(value: Json) -> str:
    for python, kind in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, python):
            return kind
    return "null" if value is None else "object"


def _json_equal(a: Json, b: Json) -> bool:
    """JSON equality: 1 is 1.0, but neither is true."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_json_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_json_equal(a[key], b[key]) for key in a)
    return bool(a == b)


def _path_text(path: tuple[Any, ...]) -> str:
    steps: list[str] = []
    while path:
        path, step = path
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step[:80]}")
    return "$" + "".join(reversed(steps))


def _describe_value(value: Json) -> str:
    if isinstance(value, list):
        return f"array of {len(value)}"
    if isinstance(value, dict):
        return f"object with {_abbreviate(list(value)[:20])}"
    return (
        "null"
        if value is None
        else f"{_type_name(value)} {_abbreviate(value[:80] if isinstance(value, str) else value)}"
    )


def _abbreviate(value: Json) -> str:
    text = _dumps(value, nan=True)
    return text if len(text) <= 400 else text[:400] + "…"


def find_unsafe(value: Json) -> str | None:
    """The reason why a value cannot be passed on as JSON (depth, NaN, an endless number, a lone surrogate), or None."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            return f"nested more than {MAX_DEPTH} levels deep"
        below: list[Json] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, float) and not math.isfinite(item):
                return "a number is NaN or too large"
            elif isinstance(item, str) and not item.isascii() and item != item.encode(errors="replace").decode():
                return "a string has a lone surrogate, which is not Unicode text"
        level, depth = below, depth + 1
    return None


# ----------------------------------------------------------------------------------------------------------- the server


_OPTIONS = ("name", "title", "description", "input_schema", "read_only", "destructive", "idempotent")
_NAME_PUNCTUATION = str.maketrans("_.-", "aaa")
_HINTS: dict[Literal["read_only", "destructive", "idempotent"], str] = {
    "read_only": "readOnlyHint",
    "destructive": "destructiveHint",
    "idempotent": "idempotentHint",
}


class _Tool:
    """A tool of the server, with its schemas."""

    __slots__ = ("fn", "input_schema", "listed", "output_schema", "wrapped")

    def __init__(
        self, fn: Callable[..., Any], listed: Mapping[str, Json], input_schema: Json, output_schema: Json, wrapped: bool
    ) -> None:
        self.fn = fn
        self.listed = listed
        """Entry of the tool in `tools/list`."""
        self.input_schema = input_schema
        self.output_schema = output_schema
        """Schema of the structured result; None if the result is text only."""
        self.wrapped = wrapped
        """True if the structured result is {"result": value}, because the value is not an object."""


class Server:
    """Tools, at most one setup and one declared state, served over stdin and stdout."""

    def __init__(self, name: str, version: str = "1.0", instructions: str = "") -> None:
        self._info = {"name": name, "version": version}
        self._about = {"instructions": instructions} if instructions else {}
        self._tools: dict[str, _Tool] = {}
        self._setup: Callable[[Json, int], object] | None = None
        self._state: Callable[[], Json] | None = None
        self._was_set_up = False
        self._line_bytes = MAX_LINE_BYTES

    # ------------------------------------------------------------------------------------------------------ declaring

    def setup(self, fn: F) -> F:
        """Declare `fn(initial_state, seed)`, which the harness calls once, before any tool."""
        self._setup = fn
        return fn

    def state(self, fn: F) -> F:
        """Declare `fn() -> JSON value`, which returns the whole state that counts."""
        self._state = fn
        return fn

    def tool(self, **options: Unpack[ToolOptions]) -> Callable[[F], F]:
        """`add_tool` as a decorator."""

        def register(fn: F) -> F:
            self.add_tool(fn, **options)
            return fn

        return register

    def add_tool(self, fn: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        """Add a tool. It is called with keyword arguments, which are not converted.

        Without `input_schema`, the schemas come from the annotations, and a result that is not str or None is also
        returned as structured content. With `input_schema`, no annotation is read and results are text. Raises
        TypeError for annotations without a schema, ValueError for a bad name or schema.
        """
        unknown = options.keys() - set(_OPTIONS)
        if unknown:
            raise TypeError(f"unknown options {sorted(unknown)}; have {list(_OPTIONS)}")
        self._register(fn, fn, options)

    def _register(self, fn: Callable[..., Any], typed: Callable[..., Any], options: ToolOptions) -> None:
        """Add the tool `fn` with the signature of `typed`, which is `fn` or the unbound method that it calls."""
        name = options.get("name") or typed.__name__
        if not 1 <= len(name) <= 128 or not name.isascii() or not name.translate(_NAME_PUNCTUATION).isalnum():
            raise ValueError(f"tool {name!r}: a name has 1 to 128 characters of A-Z a-z 0-9 _ . -")
        if name in self._tools:
            raise ValueError(f"tool {name!r}: there is one already")
        input_schema = options.get("input_schema")
        output_schema, wrapped = None, False
        try:
            if input_schema is None:
                input_schema = parameters_schema(typed, skip_self=typed is not fn)
                output_schema, wrapped = _result_schema(typed)
            check_schema(input_schema)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"tool {name!r}: {error}") from error
        if not isinstance(input_schema, dict) or input_schema.get("type") != "object":
            raise ValueError(f'tool {name!r}: the input schema must say "type": "object"')
        listed = {
            "name": name,
            "title": options.get("title"),
            "description": options.get("description", _parse_docstring(typed.__doc__)[0]),
            "inputSchema": input_schema,
            "outputSchema": output_schema,
            "annotations": {hint: options[key] for key, hint in _HINTS.items() if key in options},
        }
        listed = {key: part for key, part in listed.items() if part}
        self._tools[name] = _Tool(fn, listed, input_schema, output_schema, wrapped)

    # -------------------------------------------------------------------------------------------------------- serving

    def run(self) -> None:
        """Serve stdin and stdout until stdin ends. Afterwards both stay redirected: prints go to stderr."""
        self.serve(*claim_wire())

    def serve(self, reader: BinaryIO, writer: BinaryIO) -> None:
        """Answer line by line until the reader ends, or the other end of the writer is closed."""
        while line := reader.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = reader.readline(MAX_LINE_BYTES)
                answer: bytes | None = _error_line(
                    None, ProtocolError(PARSE_ERROR, f"more than {MAX_LINE_BYTES} bytes")
                )
            else:
                answer = self.handle(line)
            if answer is not None:
                try:
                    writer.write(answer)
                    writer.flush()
                except BrokenPipeError:
                    return

    def handle(self, line: bytes) -> bytes | None:
        """The answer to one message, as a line; None if no answer is due (a notification, a blank line)."""
        if not line.strip():
            return None
        request_id: str | int | None = None
        method: Json = None
        try:
            message = _decode(line)
            if not isinstance(message, dict):
                raise ProtocolError(INVALID_REQUEST, "a message is one JSON object; batches are not served")
            if "method" not in message and ("result" in message or "error" in message):
                return None  # a stray response: an answer to it could begin an endless exchange
            message_id, method = message.get("id"), message.get("method")
            if isinstance(message_id, (str, int)) and not isinstance(message_id, bool):
                request_id = message_id
            if message.get("jsonrpc") != "2.0" or not isinstance(method, str):
                raise ProtocolError(INVALID_REQUEST, "not a JSON-RPC 2.0 request")
            if "id" not in message:
                return None
            if request_id is None:
                raise ProtocolError(INVALID_REQUEST, "a request's id is a string or an integer")
            result = self._dispatch(method, message.get("params"))
            answer = _encode({"jsonrpc": "2.0", "id": request_id, "result": result})
            if len(answer) > self._line_bytes:
                result = self._replace_oversized(method, result, len(answer))
                answer = _encode({"jsonrpc": "2.0", "id": request_id, "result": result})
            return answer
        except ProtocolError as error:
            return _error_line(request_id, error)
        except Exception as error:
            _print_traceback(error)
            code = STATE_UNAVAILABLE if method == "gymcp/state" else INTERNAL_ERROR  # such as MemoryError
            return _error_line(request_id, ProtocolError(code, f"Internal error: {_describe(error)}"))

    def _dispatch(self, method: str, params: Json) -> dict[str, Json]:
        if params is None:
            params = {}
        if not isinstance(params, dict):
            raise ProtocolError(INVALID_PARAMS, "Invalid request parameters")
        meta: Json = params.get("_meta")
        # initialize does not exist in 2026-07-28, even if a client puts the envelope on it
        modern = method != "initialize" and isinstance(meta, dict) and VERSION_KEY in meta
        if modern:
            _check_envelope(meta)
        handlers: dict[str, Callable[[dict[str, Json]], dict[str, Json]]] = {
            "server/discover" if modern else "initialize": self._discover if modern else self._initialize,
            "ping": lambda params: {},
            "tools/list": lambda params: {"tools": [tool.listed for tool in self._tools.values()]},
            "tools/call": self._call,
            "gymcp/setup": self._set_up,
            "gymcp/state": self._read_state,
        }
        if method not in handlers:
            raise ProtocolError(METHOD_NOT_FOUND, "Method not found", method)
        result = handlers[method](params)
        if modern:
            result["resultType"] = "complete"
            result["_meta"] = {**result.get("_meta", {}), SERVER_INFO_KEY: self._info}
            if method in ("server/discover", "tools/list"):
                result.update(ttlMs=0, cacheScope="private")
        return result

    def _replace_oversized(self, method: str, result: dict[str, Json], size: int) -> dict[str, Json]:
        """An error result in place of a result that is too long for the client. Raises ProtocolError."""
        why = f"{size} bytes as a message, where at most {self._line_bytes} are read"
        if method == "gymcp/state":
            raise ProtocolError(STATE_UNAVAILABLE, f"the state has {why}")
        if method != "tools/call":
            raise ProtocolError(INTERNAL_ERROR, f"the answer has {why}")
        meta = {key: value for key, value in result.pop("_meta", {}).items() if key != RESULT_STATE_KEY}
        rest = {key: value for key, value in result.items() if key not in ("content", "isError", "structuredContent")}
        return {**_text_result(f"The result has {why}", is_error=True), **rest, **({"_meta": meta} if meta else {})}

    def _initialize(self, params: dict[str, Json]) -> dict[str, Json]:
        requested = params.get("protocolVersion")
        if not isinstance(requested, str):
            raise ProtocolError(INVALID_PARAMS, "Invalid request parameters")
        version = requested if requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": self._info,
            **self._about,
        }

    def _discover(self, params: dict[str, Json]) -> dict[str, Json]:
        return {"supportedVersions": list(MODERN_VERSIONS), "capabilities": {"tools": {}}, **self._about}

    def _call(self, params: dict[str, Json]) -> dict[str, Json]:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not (arguments is None or isinstance(arguments, dict)):
            raise ProtocolError(INVALID_PARAMS, "Invalid request parameters")
        meta: Json = params.get("_meta")
        if not isinstance(meta, dict):
            meta = {}
        limit = meta.get(TIMEOUT_KEY)
        if isinstance(limit, (int, float)) and 0 < limit < math.inf:
            result = self._answer_within(limit, name, arguments or {})
        else:
            result = self._answer(name, arguments or {})
        if self._state is not None:
            key, state, characters = self._encode_state()
            result["_meta"] = {STATE_KEY: key}
            within = meta.get(STATE_WITHIN_KEY)
            if isinstance(within, int) and characters <= within:
                result["_meta"][RESULT_STATE_KEY] = state
        return result

    def _answer_within(self, limit: float, name: str, arguments: dict[str, Json]) -> dict[str, Json]:
        def interrupt(*_: object) -> None:
            raise _CallTimeout

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            try:
                # repeated, because a tool may swallow the first interruption in a bare `except:`
                signal.setitimer(signal.ITIMER_REAL, limit, _ALARM_PERIOD_S)
                return self._answer(name, arguments)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except _CallTimeout:
            signal.setitimer(signal.ITIMER_REAL, 0)  # for an alarm that came between the answer and the line above
            return _text_result(f"tool {name!r} did not answer within {limit:g} s, {CALL_LIMIT}", is_error=True)
        finally:
            signal.signal(signal.SIGALRM, before)

    def _answer(self, name: str, arguments: dict[str, Json]) -> dict[str, Json]:
        tool = self._tools.get(name)
        if tool is None:
            return _text_result(f"Unknown tool: {name[:200]}", is_error=True)
        try:
            violation = find_unsafe(arguments) or find_violation(arguments, tool.input_schema)
            if violation:
                raise ToolError(f"Invalid arguments for tool {name!r}: {violation}")
            return _shape_result(tool, tool.fn(**arguments))
        except ToolError as error:
            return _text_result(str(error), is_error=True)
        except (Exception, SystemExit) as error:
            _print_traceback(error)
            return _text_result(_describe(error), is_error=True)

    # ---------------------------------------------------------------------------- for the harness, not listed as tools

    def _set_up(self, params: dict[str, Json]) -> dict[str, Json]:
        seed = params.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ProtocolError(INVALID_PARAMS, "seed: expected an integer")
        if self._setup is None:
            raise ProtocolError(METHOD_NOT_FOUND, "this server declares no setup", "gymcp/setup")
        if self._was_set_up:
            raise ProtocolError(SETUP_FAILED, "setup was called before; a process serves one episode")
        self._was_set_up = True
        line_bytes = params.get(LINE_KEY)
        if isinstance(line_bytes, int) and 0 < line_bytes < MAX_LINE_BYTES:
            self._line_bytes = line_bytes
        try:
            self._setup(params.get("initialState"), seed)
        except (Exception, SystemExit) as error:
            _print_traceback(error)
            raise ProtocolError(SETUP_FAILED, f"setup failed: {_describe(error)}") from error
        listing = _dumps([tool.listed for tool in self._tools.values()], sort_keys=True, ascii=True)
        return {
            "stateKey": None if self._state is None else self._read_state({})["stateKey"],
            "toolsKey": sha256(listing.encode(errors="replace")).hexdigest(),
        }

    def _read_state(self, params: dict[str, Json]) -> dict[str, Json]:
        key, state, _ = self._encode_state()
        return {"stateKey": key, "state": state}

    def _encode_state(self) -> tuple[str, Json, int]:
        """(key, state, number of characters of its canonical JSON)."""
        if self._state is None:
            raise ProtocolError(METHOD_NOT_FOUND, "this server declares no state", "gymcp/state")
        try:
            canonical, state = _canonical(self._state())
            return sha256(canonical.encode()).hexdigest(), state, len(canonical)
        except (Exception, SystemExit) as error:
            _print_traceback(error)
            raise ProtocolError(STATE_UNAVAILABLE, f"the state cannot be told: {_describe(error)}") from error


def class_server(cls: type, name: str | None = None) -> Server:
    """A server whose tools are the public methods of one instance of the class.

    The initial state is the keyword arguments of the class (null for none); the state is the instance's public
    attributes. If the client calls no setup, the first use creates `cls()`. The seed is not used.
    """
    server = Server(cls.__name__ if name is None else name)
    instances: list[Any] = []

    def instance() -> Any:
        if not instances:
            instances.append(cls())
        return instances[0]

    @server.setup
    def setup(initial_state: Json, seed: int) -> None:
        instances[:] = [cls(**(initial_state or {}))]

    @server.state
    def state() -> Json:
        return {key: value for key, value in vars(instance()).items() if not key.startswith("_")}

    methods: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        kinds = (type(class_server), staticmethod)
        methods.update({key: part for key, part in vars(owner).items() if isinstance(part, kinds)})
    for key, method in methods.items():
        if isinstance(method, staticmethod) and not key.startswith("_"):
            server._register(method.__func__, method.__func__, {"name": key})
        elif not key.startswith("_"):

            def call(_method: str = key, /, **arguments: Json) -> Any:
                return getattr(instance(), _method)(**arguments)

            server._register(call, method, {})
    return server


# ------------------------------------------------------------------------------------------------- results and the wire


def _result_schema(fn: Callable[..., Any]) -> tuple[Json, bool]:
    """(output schema or None, True if the value is wrapped as {"result": value})."""
    hints = _hints(fn)
    if hints.get("return", str) in (str, type(None)):
        return None, False
    schema = schema_of(hints["return"])
    if schema.get("type") == "object":
        return schema, False
    return _object_schema({"result": schema}, ["result"]), True


def _shape_result(tool: _Tool, value: Any) -> dict[str, Json]:
    """A tools/call result. Raises ToolError if the value does not match the tool's output schema."""
    if value is None and tool.output_schema is None:
        return {"content": [], "isError": False}
    text = value if isinstance(value, str) else _dumps(value)
    result = _text_result(text, is_error=False)
    if tool.output_schema is not None:
        # tuples and keys as the client will see them
        plain = value if isinstance(value, str) else _loads(text, _select_context())
        if not isinstance(value, str) and _is_too_deep(text):
            raise ToolError(f"Tool {tool.listed['name']!r} returned what is nested more than {MAX_VALUE_DEPTH} deep")
        structured = {"result": plain} if tool.wrapped else plain
        violation = find_violation(structured, tool.output_schema)
        if violation:
            raise ToolError(f"Tool {tool.listed['name']!r} returned something else than it declares: {violation}")
        result["structuredContent"] = structured
    return result


def _text_result(text: str, *, is_error: bool) -> dict[str, Json]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _check_envelope(meta: dict[str, Json]) -> None:
    version = meta[VERSION_KEY]
    if CAPABILITIES_KEY not in meta:
        raise ProtocolError(INVALID_PARAMS, f"params._meta is missing the required envelope key(s): {CAPABILITIES_KEY}")
    if not isinstance(version, str):
        raise ProtocolError(INVALID_PARAMS, "the protocol-version envelope value must be a string")
    if version not in MODERN_VERSIONS:
        details = {"supported": list(MODERN_VERSIONS), "requested": version}
        raise ProtocolError(UNSUPPORTED_VERSION, "Unsupported protocol version", details)


def _decode(line: bytes) -> Json:
    try:
        return _loads(line.decode(), _WIRE)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(PARSE_ERROR, f"Parse error: {type(error).__name__}") from None


def _encode(message: Json) -> bytes:
    # a lone surrogate would make the line unreadable to the client: one wrong character is better than a lost answer
    return _dumps(message).encode(errors="replace") + b"\n"


def _error_line(request_id: str | int | None, error: ProtocolError) -> bytes:
    body = {"code": error.code, "message": str(error)}
    if error.details is not None:
        body["data"] = error.details
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": body})


def _describe(error: BaseException) -> str:
    """Text of an exception for the agent, "TypeName: message"; without an OSError's path, which may be the host's."""
    text = ""
    try:
        text = ((error.strerror or "") if isinstance(error, OSError) else str(error))[:MAX_ERROR_CHARS]
    except Exception:
        pass  # __str__ may be arbitrary code
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _print_traceback(error: BaseException) -> None:
    try:
        sys.__excepthook__(type(error), error, error.__traceback__)
    except Exception:
        pass  # a closed stderr must not cost the answer


def claim_wire() -> tuple[BinaryIO, BinaryIO]:
    """Move the wire to new descriptors: tools and their children get a closed stdin, and stderr as stdout.

    A forked server has another wire: `spawner.py` replaces this function by its own.
    """
    wire_in, wire_out = posix.dup(0), posix.dup(1)
    closed_end, writing_end = posix.pipe()
    posix.close(writing_end)
    posix.dup2(closed_end, 0)
    posix.close(closed_end)
    posix.dup2(2, 1)
    sys.stdout = sys.stderr
    return open(wire_in, "rb"), open(wire_out, "wb")
