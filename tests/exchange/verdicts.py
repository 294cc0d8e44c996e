"""What the fixture `harbor` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gymcp.types import Json

Verdicts = Callable[[Iterable[Json]], list[Json]]
"""From documents to Harbor's objections to each, and what it keeps where it has none."""
