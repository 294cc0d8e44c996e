"""JSON Schemas for a rule's arguments, read strictly, because a misspelt condition would hold for every call."""

from __future__ import annotations

import json

from jsonschema import Draft202012Validator

from gymcp.types import Json

_FORMATS = Draft202012Validator.FORMAT_CHECKER
_META = "https://json-schema.org/draft/2020-12/schema"
_NOTHING: Json = {"not": {}}
_STRICT = Draft202012Validator(
    {
        "$schema": _META,
        "$id": "urn:gymcp:rule",
        "$dynamicAnchor": "meta",  # so that it applies to schemas within the schema, too
        "$ref": _META,
        "properties": {"format": {"enum": sorted(_FORMATS.checkers)}, "$ref": _NOTHING, "$dynamicRef": _NOTHING},
        "unevaluatedProperties": False,
    },
    format_checker=_FORMATS,
)


def find_schema_fault(schema: Json) -> str | None:
    """The reason why it is not a self-contained JSON Schema (2020-12); None if it is one.

    Stricter than the standard: every keyword must be known, and every format must be one that is checked.
    """
    try:
        json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:  # TOML has dates, times, NaN and infinities
        return str(error)
    errors = list(_STRICT.iter_errors(schema))
    if not errors:
        return None
    worst = max(errors, key=lambda error: len(error.absolute_path))  # a fault inside makes the outside wrong, too
    if worst.absolute_path and worst.absolute_path[-1] in ("$ref", "$dynamicRef"):
        return f"{worst.absolute_path[-1]}: it must stand by itself"
    return str(worst.message)


def matches_schema(value: Json, schema: Json) -> bool:
    """True if the value meets the schema, its formats included."""
    return Draft202012Validator(schema, format_checker=_FORMATS).is_valid(value)
