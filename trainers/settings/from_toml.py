"""Records from the tables of a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from gymcp.errors import ConfigError
from gymcp.trainers.settings.validate import check_range, check_value
from gymcp.types import Json

T = TypeVar("T")


def record_of(cls: type[T], table: Mapping[str, Json], section: str) -> T:
    """The record of a table: inner tables become records, lists become tuples.

    Raises ConfigError for an unknown key or a wrong value, naming key and `section`.
    """
    hints, known = get_type_hints(cls), {field.name for field in fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{section}.{key}" if section else key
        if key not in known:
            raise ConfigError(f"recipe: no key {name!r:.80}; have {', '.join(sorted(known))}")
        hint = hints[key]
        frozen = tuple(value) if isinstance(value, list) else value
        check_value(f"recipe: {name}", frozen, hint)
        check_range(f"recipe: {name}", frozen, 0)
        if is_dataclass(hint):
            values[key] = record_of(hint, value, name)  # type: ignore[arg-type]
            continue
        values[key] = float(frozen) if hint is float and isinstance(frozen, int) else frozen
    return cls(**values)
