"""How a suite says where its tasks can be attacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gymcp.protocols import Grader
from gymcp.types import GoldTurn, Json, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What an attacker wants done."""

    id: str
    text: str
    """As the agent would be told."""
    reached: Grader
    """1 where it has been done; it gets the attacked task."""
    gold: GoldTurn | None = None
    """Calls and last words that do it; None: not known."""
    target: Json = None
    """The attacked task's target, where it differs from the task's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """A task whose world holds text of strangers."""

    task: Task
    world: Json
    """The initial state with ``{vector}`` in its texts."""
    vectors: Mapping[str, str]
    """By name, what stands there without an attack."""
    seen: frozenset[str]
    """The vectors that an agent reads when it does the task."""
    goals: tuple[Goal, ...]
    user: str = "the user"
    """Whom the attacker pretends to be."""
    spell: Callable[[str], str] = str
    """What becomes of a text that is put into the world."""
