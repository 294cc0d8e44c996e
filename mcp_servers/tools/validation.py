"""Check the tools that a server lists. Every session's list passes through here."""

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
"""Values in all schemas of a list together. Checking one takes up to 0.5 ms."""
FEW_SCHEMA_VALUES = 1_000
"""Values up to which the schemas of a list are checked in this process; beyond, in another one."""
CHECK_TIMEOUT_S = 30.0
MAX_CACHED_SCHEMAS = 4096
"""Schemas whose fault, or lack of one, is cached."""
MAX_NAME_CHARS = 256
_FORMATS = FormatChecker(formats=())
"""Formats that are checked against metaschemas: only ``regex``. Other formats are annotations."""
_FORMATS.checks("regex", raises=ValueError)(check_regex)
_faults: OrderedDict[bytes, str | None] = OrderedDict()
"""Faults by the hash of a schema's text, which may be long."""


def fault_of_tools(tools: Iterable[Tool]) -> str | None:
    """Reason why no agent can work with this list, in words; None if there is none."""
    listed = tuple(tools)
    if not listed:
        return "it lists no tools"
    if duplicates := [name for name, count in Counter(tool.name for tool in listed).items() if count > 1]:
        return f"it lists two tools named '{duplicates[0][:MAX_NAME_CHARS]}'"
    values = sum(_count_values(tool.input_schema) for tool in listed)
    if values > MAX_SCHEMA_VALUES:
        return f"its input schemas hold {values} values; at most {MAX_SCHEMA_VALUES} are taken"
    for tool in listed:
        if not tool.name or len(tool.name) > MAX_NAME_CHARS or not tool.name.isprintable():
            return f"it lists a tool with the name {tool.name[:MAX_NAME_CHARS]!r}"
    schemas = [json.dumps(tool.input_schema) for tool in listed]
    faults = faults_of_schemas(schemas) if values <= FEW_SCHEMA_VALUES else _check_in_subprocess(schemas)
    return next((f"tool '{tool.name}': {fault}" for tool, fault in zip(listed, faults, strict=True) if fault), None)


def _count_values(schema: Json) -> int:
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
    """The fault of each schema, in words; None if it has none."""
    faults: list[str | None] = []
    for text in texts:
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if key not in _faults:
            _store_fault(key, _fault_of_schema(text))
        faults.append(_faults[key])
    return faults


def _store_fault(key: bytes, fault: str | None) -> None:
    _faults[key] = fault
    if len(_faults) > MAX_CACHED_SCHEMAS:
        _faults.popitem(last=False)


def _check_in_subprocess(texts: Sequence[str]) -> list[str | None]:
    """`faults_of_schemas` in another process: checking holds this process's interpreter, which all episodes share."""
    keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    if not all(key in _faults for key in keys):
        code = f"from {__name__} import check_stdin; check_stdin()"
        try:
            done = subprocess.run(
                [sys.executable, "-c", code],
                input=json.dumps(texts).encode(),
                capture_output=True,
                check=True,
                timeout=CHECK_TIMEOUT_S,
            )
            faults: list[str | None] = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return [f"its input schemas could not be checked: {type(error).__name__}", *[None] * (len(texts) - 1)]
        for key, fault in zip(keys, faults, strict=True):
            _store_fault(key, fault)
        return faults
    return [_faults[key] for key in keys]


def check_stdin() -> None:
    """Read schemas from standard input and write their faults to standard output."""
    json.dump(faults_of_schemas(json.load(sys.stdin)), sys.stdout)


def _fault_of_schema(text: str) -> str | None:
    """Fault of the schema by the metaschema that it names. Only jsonschema's own are used: nothing is ever fetched."""
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
        location = "/".join(map(str, error.absolute_path)) or "its root"
        why = f"{error.message[:200]}{f': {error.cause}' if error.cause else ''}"
        return f"its input schema is not valid JSON Schema: at {location}: {why}"
    return None
