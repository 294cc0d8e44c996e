"""Graders of the answer's form, whatever its content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from gymcp.errors import ConfigError
from gymcp.evaluators.graders.answers import NEVER_SPOKE, final_answer, last_number, read_json
from gymcp.evaluators.json_diff import brief
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory

_NOT_IN_A_SCHEMA = {"$ref", "$dynamicRef", "pattern", "patternProperties"}
"""Schema keywords that could fetch a document, or take for ever on a text that the agent chose."""


def answer_has_format(form: str) -> Grader:
    """Grader: 1 if the final answer has the named one of the `FORMATS`, else 0. Raises ConfigError for another name."""
    if form not in FORMATS:
        raise ConfigError(f"answer_has_format: no format '{form}'; have {', '.join(FORMATS)}")
    holds = FORMATS[form]

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        answer = final_answer(trajectory)
        if answer is None:
            return NEVER_SPOKE
        if holds(answer):
            return Score(value=1.0, reason=f"the answer is {form}, as wanted")
        return Score(value=0.0, reason=f"the answer {brief(answer)} is not {form}")

    return grade


def answer_fits_schema(schema: Mapping[str, Json]) -> Grader:
    """Grader: 1 if the final answer is JSON that is valid under the JSON Schema (2020-12), else 0.

    Raises ConfigError for an invalid schema, and for one with references or patterns.
    """
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(f"answer_fits_schema: no JSON Schema: {error.message}") from error
    if refused := sorted(_keys(schema) & _NOT_IN_A_SCHEMA):
        raise ConfigError(f"answer_fits_schema: the schema has '{refused[0]}', which is not taken")
    validator = Draft202012Validator(schema)

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        answer = final_answer(trajectory)
        if answer is None:
            return NEVER_SPOKE
        try:
            value = read_json(answer)
            violation = next(iter(validator.iter_errors(value)), None)
        except (ValueError, RecursionError) as error:
            return Score(value=0.0, reason=f"the answer {brief(answer)} is not JSON: {error}")
        if violation is None:
            return Score(value=1.0, reason="the answer fits the schema")
        where = "/".join(map(str, violation.absolute_path))
        return Score(value=0.0, reason=f"in the answer, /{where}: {brief(violation.message)}")

    return grade


def _keys(schema: Json) -> set[str]:
    keys: set[str] = set()
    for part in _parts(schema):
        keys |= part.keys()
    return keys


def _parts(schema: Json) -> Iterator[Mapping[str, Json]]:
    if isinstance(schema, Mapping):
        yield schema
        for inner in schema.values():
            yield from _parts(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            yield from _parts(inner)


def _is_json(text: str) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True


def _is_object(text: str) -> bool:
    return _is_json(text) and isinstance(read_json(text), dict)


def _is_number(text: str) -> bool:
    # a number and nothing else: no second one, no unit
    return last_number(text) is not None and not set(text.strip()) - set("+-.,0123456789eE") and _is_one(text)


def _is_one(text: str) -> bool:
    try:
        float(text.strip().replace(",", ""))
    except ValueError:
        return False
    return True


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text.strip()).isoformat() == text.strip()
    except ValueError:
        return False


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "JSON": _is_json,
    "a JSON object": _is_object,
    "a number": _is_number,
    "a date": _is_date,
    "one word": lambda text: len(text.split()) == 1,
    "one line": lambda text: bool(text.strip()) and len(text.strip().splitlines()) == 1,
}
"""Tests of a text by the format's name. A date is YYYY-MM-DD. White space around the text does not matter."""
