"""What a server may list as its tools: checked once, where every session passes."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import validator_for

from gymcp.mcp_servers.regex import check_regex
from gymcp.types import Json, Tool

MAX_SCHEMA_CHARS = 500_000
MAX_SCHEMA_VALUES = 30_000
"""In all schemas of a list together: to check one takes up to half a millisecond."""
MAX_NAME_CHARS = 256
_FORMATS = FormatChecker(formats=())
"""Of what metaschemas want, only that a pattern is one: other formats are annotations."""
_FORMATS.checks("regex", raises=ValueError)(check_regex)


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
        if fault := _fault_of_schema(json.dumps(tool.input_schema)):
            return f"tool '{tool.name}': {fault}"
    return None


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


@functools.lru_cache(maxsize=4096)
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
