"""What a kind of request makes: a task without its wording."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from gymcp.envs.suites.generation.single_turn import Call
from gymcp.envs.suites.workbench.bench import SERVER_OF, Bench

Structure = Literal["sequential", "parallel", "conditional"]
Scope = Literal["single", "multi"]
Stage = tuple[Call, ...]
"""Calls that could be made at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What is asked, and the calls that do it."""

    slots: Mapping[str, object]
    """What the wording names."""
    stages: tuple[Stage, ...]
    """One after another; the arguments of each may hang on what those before it have read."""
    other_branch: frozenset[str] = frozenset()
    """Servers of the calls that would have been right had something else been found: they must be there, too."""
    answer: str = ""
    """What must be said at the end; empty: anything."""
    reply: str = ""
    """What is asked for as an answer; empty: nothing."""

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for stage in self.stages for call in stage)

    @property
    def servers(self) -> frozenset[str]:
        return self.other_branch | {SERVER_OF[name] for name, _ in self.calls}


Make = Callable[[Bench, random.Random, int], Draft]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of requests."""

    make: Make
    scope: Scope
    structure: Structure
    bodies: tuple[str, ...]
    """Ways to say it, with the draft's slots open."""


def one(name: str, /, **arguments: object) -> Stage:
    """A stage of one call."""
    return ((name, dict(arguments)),)
