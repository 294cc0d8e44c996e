"""Records out of the tables of a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from gymcp.errors import ConfigError
from gymcp.trainers.settings.validate import check_range, check_value
from gymcp.types import Json

T = TypeVar("T")


def record_of(cls: type[T], table: Mapping[str, Json], where: str) -> T:
    """The record of a table; sections become records, lists tuples. Raises ConfigError, naming key and section."""
    hints, known = get_type_hints(cls), {each.name for each in fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        if key not in known:
            raise ConfigError(f"recipe: no key {name!r:.80}; have {', '.join(sorted(known))}")
        hint = hints[key]
        taken = tuple(value) if isinstance(value, list) else value
        check_value(f"recipe: {name}", taken, hint)
        check_range(f"recipe: {name}", taken, 0)
        if is_dataclass(hint):
            values[key] = record_of(hint, value, name)  # type: ignore[arg-type]
            continue
        values[key] = float(taken) if hint is float and isinstance(taken, int) else taken
    return cls(**values)
