"""What a server may list as its tools: checked once, where every session passes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import validator_for

from gymcp.mcp_servers.tools.regex_syntax import check_regex
from gymcp.types import Json, Tool

MAX_SCHEMA_CHARS = 500_000
MAX_SCHEMA_VALUES = 30_000
"""In all schemas of a list together: to check one takes up to half a millisecond."""
FEW_SCHEMA_VALUES = 1_000
"""Values in the schemas of a list that are checked in this process."""
CHECK_TIMEOUT_S = 30.0
MAX_CHECKED = 4096
"""Schemas of which it is remembered what is wrong with them."""
MAX_NAME_CHARS = 256
_FORMATS = FormatChecker(formats=())
"""Of what metaschemas want, only that a pattern is one: other formats are annotations."""
_FORMATS.checks("regex", raises=ValueError)(check_regex)
_checked: OrderedDict[bytes, str | None] = OrderedDict()
"""By the hash of a schema's text, which may be long."""


def fault_of_tools(tools: Iterable[Tool]) -> str | None:
    """In words, why no agent can work with this list; None where it can."""
    listed = tuple(tools)
    if not listed:
        return "it lists no tools"
    if twice := [name for name, count in Counter(tool.name for tool in listed).items() if count > 1]:
        return f"it lists two tools named '{twice[0][:MAX_NAME_CHARS]}'"
    values = sum(_values_in(tool.input_schema) for tool in listed)
    if values > MAX_SCHEMA_VALUES:
        return f"its input schemas hold {values} values; at most {MAX_SCHEMA_VALUES} are taken"
    for tool in listed:
        if not tool.name or len(tool.name) > MAX_NAME_CHARS or not tool.name.isprintable():
            return f"it lists a tool with the name {tool.name[:MAX_NAME_CHARS]!r}"
    schemas = [json.dumps(tool.input_schema) for tool in listed]
    faults = faults_of_schemas(schemas) if values <= FEW_SCHEMA_VALUES else _faults_found_apart(schemas)
    return next((f"tool '{tool.name}': {fault}" for tool, fault in zip(listed, faults, strict=True) if fault), None)


def _values_in(schema: Json) -> int:
    count, waiting = 0, [schema]
    while waiting:
        value = waiting.pop()
        count += 1
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return count


def faults_of_schemas(texts: Sequence[str]) -> list[str | None]:
    """In words what is wrong with each; None: nothing."""
    found: list[str | None] = []
    for text in texts:
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if key not in _checked:
            _remember(key, _fault_of_schema(text))
        found.append(_checked[key])
    return found


def _remember(key: bytes, fault: str | None) -> None:
    _checked[key] = fault
    if len(_checked) > MAX_CHECKED:
        _checked.popitem(last=False)


def _faults_found_apart(texts: Sequence[str]) -> list[str | None]:
    """The same, found by another process: to check a schema takes the interpreter, which all episodes share."""
    keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    if not all(key in _checked for key in keys):
        code = f"from {__name__} import serve_once; serve_once()"
        try:
            done = subprocess.run(
                [sys.executable, "-c", code],
                input=json.dumps(texts).encode(),
                capture_output=True,
                check=True,
                timeout=CHECK_TIMEOUT_S,
            )
            found: list[str | None] = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return [f"its input schemas could not be checked: {type(error).__name__}", *[None] * (len(texts) - 1)]
        for key, fault in zip(keys, found, strict=True):
            _remember(key, fault)
        return found
    return [_checked[key] for key in keys]


def serve_once() -> None:
    """Reads schemas from standard input, writes what is wrong with them."""
    json.dump(faults_of_schemas(json.load(sys.stdin)), sys.stdout)


def _fault_of_schema(text: str) -> str | None:
    """Against the metaschema that it names, of those that came with jsonschema: nothing is ever fetched."""
    if len(text) > MAX_SCHEMA_CHARS:
        return f"its input schema has {len(text)} characters; at most {MAX_SCHEMA_CHARS} are taken"
    schema = json.loads(text)
    if schema.get("type") != "object":
        return f"the type of its input schema is {schema.get('type')!r}; MCP wants 'object'"
    dialect = validator_for(schema, default=Draft202012Validator)
    try:
        error = best_match(dialect(dialect.META_SCHEMA, format_checker=_FORMATS).iter_errors(schema))
    except RecursionError:
        return "its input schema is nested too deep"
    except SchemaError as fault:  # the metaschema itself: never seen, but it is data of another package
        error = fault
    if error is not None:
        where = "/".join(map(str, error.absolute_path)) or "its root"
        why = f"{error.message[:200]}{f': {error.cause}' if error.cause else ''}"
        return f"its input schema is not valid JSON Schema: at {where}: {why}"
    return None
