"""Attack surfaces: the places in a suite's worlds that an attacker can write to, and the attackers' goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gymcp.protocols import Grader
from gymcp.types import GoldTurn, Json, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """An action that an attacker wants the agent to take."""

    id: str
    text: str
    """The goal as an instruction to the agent."""
    reached: Grader
    """Grader of the attacked task that gives 1 if the goal was reached."""
    gold: GoldTurn | None = None
    """Calls and final text that reach the goal; None: not known."""
    target: Json = None
    """Target of the attacked task; None: the task's own target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """A task whose world holds text by strangers."""

    task: Task
    world: Json
    """The initial state, with ``{vector}`` in its texts."""
    vectors: Mapping[str, str]
    """Vector name -> the text that stands there without an attack."""
    seen: frozenset[str]
    """The vectors that an agent reads when it does the task."""
    goals: tuple[Goal, ...]
    user: str = "the user"
    """Name of the user that the attacker pretends to be."""
    spell: Callable[[str], str] = str
    """Changes that the world makes to a text written into it, such as those of a YAML scalar."""
