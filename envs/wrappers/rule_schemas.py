"""JSON Schemas of a rule's arguments: read strictly, because a condition that is misspelt would hold for every call."""

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
        "$dynamicAnchor": "meta",  # so that it holds for schemas within the schema, too
        "$ref": _META,
        "properties": {"format": {"enum": sorted(_FORMATS.checkers)}, "$ref": _NOTHING, "$dynamicRef": _NOTHING},
        "unevaluatedProperties": False,
    },
    format_checker=_FORMATS,
)


def fault_of_schema(schema: Json) -> str | None:
    """Why it is no JSON Schema (2020-12) that stands by itself; None where it is one.

    Beyond the standard: every keyword must be known, and every format one that is checked.
    """
    try:
        json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:  # TOML has dates, times, and numbers that are none
        return str(error)
    errors = list(_STRICT.iter_errors(schema))
    if not errors:
        return None
    worst = max(errors, key=lambda error: len(error.absolute_path))  # what is wrong inside makes the outside wrong
    if worst.absolute_path and worst.absolute_path[-1] in ("$ref", "$dynamicRef"):
        return f"{worst.absolute_path[-1]}: it must stand by itself"
    return str(worst.message)


def fits(value: Json, schema: Json) -> bool:
    """Whether the value meets the schema, its formats included."""
    return Draft202012Validator(schema, format_checker=_FORMATS).is_valid(value)
