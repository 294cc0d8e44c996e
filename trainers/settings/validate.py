"""Checks of values that people typed against the annotations of the settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from gymcp.errors import ConfigError

_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def check_value(name: str, value: object, hint: Any) -> None:
    """Check a value against a type hint. Raises ConfigError, in which `name` stands for the value.

    Supported are finite numbers, texts, truth values, literals, sections (of records), tuples of one type, and all of
    these or None.
    """
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{name} is {value!r}; have {', '.join(map(repr, get_args(hint)))}")
    elif get_origin(hint) is UnionType:  # X | None
        if value is not None:
            check_value(name, value, get_args(hint)[0])
    elif is_dataclass(hint) or get_origin(hint) is Mapping:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is {value!r}; it must be a section of its own")
    elif get_origin(hint) is tuple:
        if not isinstance(value, tuple):
            raise ConfigError(f"{name} is {value!r}; it must be a list")
        for item in value:
            check_value(f"{name}: one", item, get_args(hint)[0])
    elif hint in _NAMES:
        types = (int, float) if hint is float else (hint,)
        if not isinstance(value, types) or (isinstance(value, bool) and hint is not bool):
            raise ConfigError(f"{name} is {value!r}; it must be {_NAMES[hint]}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{name} is {value!r}; it must be finite")


def check_range(name: str, value: object, minimum: float, maximum: float = math.inf) -> None:
    """Check a number against a range. Raises ConfigError if it lies outside; anything but a number passes."""
    if isinstance(value, bool) or not isinstance(value, int | float) or minimum <= value <= maximum:
        return
    if maximum < math.inf:
        raise ConfigError(f"{name} is {value!r}; it must be from {minimum:g} to {maximum:g}")
    raise ConfigError(f"{name} is {value!r}; it must not be {'negative' if minimum == 0 else f'less than {minimum:g}'}")
