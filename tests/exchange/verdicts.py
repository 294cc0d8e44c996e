"""Type of the fixture `harbor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gymcp.types import Json

Verdicts = Callable[[Iterable[Json]], list[Json]]
"""Documents -> for each, Harbor's objections, or the parsed content if there are none."""
