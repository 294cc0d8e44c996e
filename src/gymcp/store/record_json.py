"""Records as JSON and back. Fields keep the name that the first runs were recorded with (`STORED_NAMES`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter

from gymcp.store.validation import build_record, require_integer, require_text
from gymcp.types import Action, Json, Message, RequestTimes, ToolCall, ToolResult, UserToolCalls

STORED_NAMES: Mapping[str, str] = {"parse_error": "problem", "executed_call": "made", "content_bytes": "bytes"}
"""Fields of `ToolCall` and `ToolResult` whose name in run folders, exports and digests is an older one."""
BESIDE_STEPS = frozenset({"reasoning", "request_times", "context", "side_answers"})
"""Fields of `Step`, `Sampled` and `Trajectory` that run folders and exports keep beside them, or leave out: a reader of
an earlier version refuses a record with a field that it does not know."""

_CURRENT_NAMES = {stored: name for name, stored in STORED_NAMES.items()}


def dumps(value: Json, *, ascii_only: bool = False) -> str:
    """Compact JSON of a value that may hold records and mappings. Raises TypeError, ValueError or RecursionError."""
    return (_ASCII_ENCODER if ascii_only else _ENCODER).encode(value)


def decode_versions(spans: Iterable[Sequence[Json]]) -> tuple[tuple[str, int, int], ...]:
    """`Sampled.versions`, from its JSON. Raises ValueError or TypeError."""
    return tuple(
        (require_text(version, "a version"), require_integer(start, "its start"), require_integer(end, "its end"))
        for version, start, end in spans
    )


def decode_action(found: Mapping[str, Json]) -> Action:
    """An action, from JSON. Raises KeyError or TypeError."""
    return build_record(Action, {"text": found["text"], "tool_calls": decode_calls(found["tool_calls"])})


def decode_acts(acts: Iterable[Mapping[str, Json]]) -> tuple[UserToolCalls, ...]:
    """A user's calls and their results, from JSON. Raises KeyError or TypeError."""
    return tuple(
        UserToolCalls(calls=decode_calls(act["calls"]), results=decode_results(act["results"])) for act in acts
    )


def decode_results(results: Iterable[Mapping[str, Json]]) -> tuple[ToolResult, ...]:
    """Results of calls, from JSON. Raises TypeError."""
    return tuple(map(_decode_result, results))


def _decode_result(found: Mapping[str, Json]) -> ToolResult:
    fields = _rename_stored(found)
    if fields.get("executed_call"):
        fields["executed_call"] = _decode_call(fields["executed_call"])
    return build_record(ToolResult, fields)


def decode_calls(calls: Iterable[Mapping[str, Json]]) -> tuple[ToolCall, ...]:
    """Calls, from JSON. Raises TypeError."""
    return tuple(map(_decode_call, calls))


def _decode_call(found: Json) -> ToolCall:
    return build_record(ToolCall, _rename_stored(found))


def _rename_stored(found: Json) -> dict[str, Json]:
    """The fields of a stored record under the names that its class has now. Raises TypeError if it is no table."""
    return {_CURRENT_NAMES.get(name, name): value for name, value in require_table(found).items()}


def decode_message(found: Mapping[str, Json]) -> Message:
    """A message, from JSON. Raises KeyError or TypeError."""
    return build_record(Message, {**found, "tool_calls": decode_calls(found["tool_calls"])})


def encode_times(times: RequestTimes | None) -> Json:
    """[seconds of the request, seconds until its first token or null]; None if the times are not known."""
    return None if times is None else [times.request_s, times.first_token_s]


def decode_times(found: Json) -> RequestTimes | None:
    """The times that `encode_times` encoded. Raises TypeError or ValueError for any other value."""
    if found is None:
        return None
    request_s, first_token_s = require_list(found)
    return build_record(RequestTimes, {"request_s": request_s, "first_token_s": first_token_s})


def require_table(value: Json) -> dict[str, Json]:
    """The value, if it is a JSON object; raises TypeError otherwise."""
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} where a table should be")
    return value


def require_list(value: Json) -> list[Json]:
    """The value, if it is a JSON array; raises TypeError otherwise."""
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__} where a list should be")
    return value


def to_stored_fields(value: object) -> Json:
    """Stored name -> value of a record's fields but `BESIDE_STEPS`, or a mapping as a dictionary.

    Raises TypeError for any other value.
    """
    kind = type(value)
    if kind not in _FIELDS:
        names = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
        names = tuple(name for name in names if name not in BESIDE_STEPS)
        stored = tuple(STORED_NAMES.get(name, name) for name in names)
        _FIELDS[kind] = (stored, attrgetter(*names)) if len(names) > 1 else None
    if (found := _FIELDS[kind]) is not None:
        return dict(zip(found[0], found[1](value), strict=True))
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{kind.__name__} is not JSON")


_FIELDS: dict[type, tuple[tuple[str, ...], Callable[[object], tuple[Json, ...]]] | None] = {}
"""Stored names and values of each record class; None for other classes. Every record has two fields or more."""
# circular values are not looked for: they end in a RecursionError as well
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), default=to_stored_fields)
_ASCII_ENCODER = json.JSONEncoder(
    ensure_ascii=True, check_circular=False, separators=(",", ":"), default=to_stored_fields
)
