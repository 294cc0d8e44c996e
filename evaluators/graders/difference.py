"""Where two JSON values part, in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from gymcp.types import Json

MAX_SHOWN = 120
"""Characters of a value in a reason; the rest is cut and the cut is marked."""


def first_difference(found: Json, wanted: Json, path: str = "", *, more_keys: bool = False) -> str | None:
    """The first place where they differ, as "orders.3.status is 'open', wanted 'paid'"; None where they are equal.

    Equal as JSON: true is not 1, but 1 is 1.0; the order of keys does not matter, that of items does. `more_keys`:
    objects may have keys that the wanted ones have not.
    """
    where = path or "it"
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in sorted(wanted if more_keys else {*found, *wanted}):
            at = f"{path}.{key}" if path else str(key)
            if key not in found:
                return f"{at} is missing, wanted {shown(wanted[key])}"
            if key not in wanted:
                return f"{at} is {shown(found[key])}, wanted nothing there"
            if difference := first_difference(found[key], wanted[key], at, more_keys=more_keys):
                return difference
        return None
    if isinstance(found, list | tuple) and isinstance(wanted, list | tuple):
        for n, (one, other) in enumerate(zip(found, wanted, strict=False)):
            if difference := first_difference(one, other, f"{path}.{n}" if path else str(n), more_keys=more_keys):
                return difference
        if len(found) != len(wanted):
            return f"{where} has {len(found)} items, wanted {len(wanted)}"
        return None
    return None if _same_scalar(found, wanted) else f"{where} is {shown(found)}, wanted {shown(wanted)}"


def shown(value: Json) -> str:
    """The value as JSON, short enough for a reason."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"


def _same_scalar(found: Json, wanted: Json) -> bool:
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, float) and isinstance(wanted, float) and math.isnan(found) and math.isnan(wanted):
        return True
    return bool(found == wanted)
