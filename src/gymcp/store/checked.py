"""Records made of JSON that others have written: each field of the kind that its class declares, or a TypeError."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gymcp.types import Json

T = TypeVar("T")
MOST = 2**63
"""Whole numbers are below this, and above its negative: what sqlite and most readers of JSON can hold."""
LARGE = frozenset({"seed"})
"""Fields that hold any whole number."""
MAX_SHAPES = 10_000
"""Shapes of records that are remembered: an honest run has some dozen."""

_shapes: set[tuple[type, tuple[str, ...], tuple[type, ...]]] = set()


def made(cls: type[T], found: Mapping[str, Any]) -> T:
    """The record with these fields. Raises TypeError, naming class and field, for one that is of another kind."""
    shape = (cls, tuple(found), tuple(map(type, found.values())))
    plan = _plan(cast("type", cls))
    if shape not in _shapes:
        _check_shape(cls, plan, found)
        if len(_shapes) < MAX_SHAPES:
            _shapes.add(shape)
    for name, check in plan.by_value:
        if name in found and (fault := check(found[name])):
            raise TypeError(f"{cls.__name__}.{name} is {fault}")
    return cls(**found)


def number_of(value: object, name: str) -> float:
    """The value, if it is a number. Raises TypeError."""
    if fault := _fault_of_number(value):
        raise TypeError(f"{name} is {fault}")
    return value  # type: ignore[return-value]


def text_of(value: object, name: str) -> str:
    """The value, if it is a text. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {_kind(value)}, not a text")
    return value


def whole_of(value: object, name: str) -> int:
    """The value, if it is a whole number that 64 bits hold. Raises TypeError."""
    if fault := _fault_of_whole(value):
        raise TypeError(f"{name} is {fault}")
    return value  # type: ignore[return-value]


class _Plan:
    """How a class is checked: by the types of its fields, which are remembered, and some by value."""

    def __init__(self, cls: type) -> None:
        hints = get_type_hints(cls)
        self.hints = {field.name: hints[field.name] for field in fields(cls)}
        self.required = {
            field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING
        }
        self.by_value: list[tuple[str, Callable[[Any], str]]] = [
            (name, check) for name, hint in self.hints.items() if (check := _check_by_value(name, hint)) is not None
        ]


@functools.cache
def _plan(cls: type) -> _Plan:
    return _Plan(cls)


def _check_shape(cls: type, plan: _Plan, found: Mapping[str, Any]) -> None:
    for name, value in found.items():
        if name not in plan.hints:
            raise TypeError(f"{cls.__name__} has no field {name[:60]!r}")
        if not _fits(value, plan.hints[name]):
            raise TypeError(f"{cls.__name__}.{name} is {_kind(value)}, not {_described(plan.hints[name])}")
    if missing := sorted(plan.required - found.keys()):
        raise TypeError(f"{cls.__name__} has no {', '.join(missing)}")


def _fits(value: object, hint: Any) -> bool:
    """By types alone: what is in a container is not looked at."""
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


def _check_by_value(name: str, hint: Any) -> Callable[[Any], str] | None:
    """What says what is wrong with a value of the right type; None if the type says all."""
    if hint is int:
        return None if name in LARGE else _fault_of_whole
    if hint is float:
        return _fault_of_number
    if get_origin(hint) is Literal:
        return functools.partial(_fault_of_word, get_args(hint))
    if hint == Mapping[str, float]:
        return _fault_of_figures
    if hint == Mapping[str, Mapping[str, float]]:
        return _fault_of_tables
    return None


def _fault_of_word(known: tuple[str, ...], value: object) -> str:
    return "" if value in known else f"{str(value)[:60]!r}; have {', '.join(known)}"


def _fault_of_whole(value: object) -> str:
    if not isinstance(value, int) or isinstance(value, bool):
        return f"{_kind(value)}, not a whole number"
    return "" if -MOST < value < MOST else "a whole number of more than 64 bits"


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


def _described(hint: Any) -> str:
    if hint in _KINDS:
        return _KINDS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"a {hint.__name__}"
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        return " or ".join(_described(each) for each in get_args(hint))
    if origin is Literal:
        return "a text"
    if origin is tuple:
        return "a list"
    return "a table" if origin is not None and issubclass(origin, Mapping) else f"a {getattr(hint, '__name__', hint)}"
