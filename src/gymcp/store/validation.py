"""Records built from untrusted JSON: each field has the kind that its class declares, or a TypeError is raised."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gymcp.types import Json

T = TypeVar("T")
INTEGER_LIMIT = 2**63
"""Bound of whole numbers, exclusive, in both directions: the range that sqlite and most readers of JSON can hold."""
UNBOUNDED_INTEGERS = frozenset({"seed"})
"""Names of fields that hold any whole number."""
MAX_SHAPES = 10_000
"""Most shapes of records that are remembered: an honest run has some dozen."""

_Checks = tuple[tuple[str, ...], tuple[tuple[str, Callable[[Any], str]], ...]]
"""Names of whole numbers, whose size is checked, and names of fields whose value is checked, with the check."""
_shapes: dict[tuple[type, tuple[str, ...], tuple[type, ...]], _Checks] = {}


def build_record(cls: type[T], found: Mapping[str, Any]) -> T:
    """The record with these fields. Raises TypeError, naming class and field, for a field of another kind."""
    shape = (cls, tuple(found), tuple(map(type, found.values())))
    checks = _shapes.get(shape)
    if checks is None:
        checks = _check_shape(cls, found)
        if len(_shapes) < MAX_SHAPES:
            _shapes[shape] = checks
    whole, by_value = checks
    for name in whole:
        if not -INTEGER_LIMIT < found[name] < INTEGER_LIMIT:
            raise TypeError(f"{cls.__name__}.{name} is a whole number of more than 64 bits")
    for name, check in by_value:
        if fault := check(found[name]):
            raise TypeError(f"{cls.__name__}.{name} is {fault}")
    return cls(**found)


def require_number(value: object, name: str) -> float:
    """The value, if it is a number; raises TypeError otherwise."""
    if fault := _fault_of_number(value):
        raise TypeError(f"{name} is {fault}")
    return value  # type: ignore[return-value]


def require_text(value: object, name: str) -> str:
    """The value, if it is a text; raises TypeError otherwise."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {_kind(value)}, not a text")
    return value


def require_integer(value: object, name: str) -> int:
    """The value, if it is a whole number that 64 bits hold; raises TypeError otherwise."""
    if fault := _fault_of_whole(value):
        raise TypeError(f"{name} is {fault}")
    return value  # type: ignore[return-value]


@functools.cache
def _hints(cls: type) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Field name -> type of a record's class, and the names of the fields that it must have."""
    hints = get_type_hints(cls)
    required = (field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING)
    return {field.name: hints[field.name] for field in fields(cls)}, frozenset(required)


def _check_shape(cls: type, found: Mapping[str, Any]) -> _Checks:
    """Checks that remain for every record of this shape. Raises TypeError for a field of another kind."""
    hints, required = _hints(cls)
    whole: list[str] = []
    by_value: list[tuple[str, Callable[[Any], str]]] = []
    for name, value in found.items():
        if name not in hints:
            raise TypeError(f"{cls.__name__} has no field {name[:60]!r}")
        hint = hints[name]
        if not _fits(value, hint):
            raise TypeError(f"{cls.__name__}.{name} is {_kind(value)}, not {_describe(hint)}")
        if hint in (int, float):
            if isinstance(value, int) and name not in UNBOUNDED_INTEGERS:
                whole.append(name)
        elif get_origin(hint) is Literal:
            by_value.append((name, functools.partial(_fault_of_word, get_args(hint))))
        elif hint in _TABLES:
            by_value.append((name, _TABLES[hint]))
    if missing := sorted(required - found.keys()):
        raise TypeError(f"{cls.__name__} has no {', '.join(missing)}")
    return tuple(whole), tuple(by_value)


def _fits(value: object, hint: Any) -> bool:
    """True if the value has the hinted type; the content of a container is not checked."""
    if hint is Any:
        return True
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        return any(_fits(value, each) for each in get_args(hint))
    if origin is Literal:
        return isinstance(value, str)
    if origin is not None:
        return isinstance(value, origin)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _fault_of_word(known: tuple[str, ...], value: object) -> str:
    return "" if value in known else f"{str(value)[:60]!r}; have {', '.join(known)}"


def _fault_of_whole(value: object) -> str:
    if not isinstance(value, int) or isinstance(value, bool):
        return f"{_kind(value)}, not a whole number"
    return "" if -INTEGER_LIMIT < value < INTEGER_LIMIT else "a whole number of more than 64 bits"


def _fault_of_number(value: object) -> str:
    if type(value) is float:
        return ""
    return _fault_of_whole(value).replace("not a whole number", "not a number")


def _fault_of_figures(found: Mapping[str, Any]) -> str:
    for name, value in found.items():
        if type(value) is not float and not isinstance(value, bool) and (fault := _fault_of_number(value)):
            return f"a table in which {name[:60]!r} is {fault}"
    return ""


def _fault_of_tables(found: Mapping[str, Any]) -> str:
    for name, figures in found.items():
        if not isinstance(figures, Mapping):
            return f"a table in which {name[:60]!r} is {_kind(figures)}, not a table"
        if fault := _fault_of_figures(figures):
            return fault
    return ""


_TABLES: Mapping[Any, Callable[[Any], str]] = {
    Mapping[str, float]: _fault_of_figures,
    Mapping[str, Mapping[str, float]]: _fault_of_tables,
}
_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    bytes: "bytes",
    list: "a list",
    tuple: "a list",
    dict: "a table",
}


def _kind(value: Json) -> str:
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def _describe(hint: Any) -> str:
    if hint in _KINDS:
        return _KINDS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"a {hint.__name__}"
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        return " or ".join(_describe(each) for each in get_args(hint))
    if origin is Literal:
        return "a text"
    if origin is tuple:
        return "a list"
    return "a table" if origin is not None and issubclass(origin, Mapping) else f"a {getattr(hint, '__name__', hint)}"
