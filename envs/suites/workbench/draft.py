"""Drafts, which are tasks without a wording, and families, which make them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from gymcp.envs.suites.generation.single_turn import Call
from gymcp.envs.suites.workbench.office import SERVER_OF, Office

Structure = Literal["sequential", "parallel", "conditional"]
Scope = Literal["single", "multi"]
Stage = tuple[Call, ...]
"""Calls that can be made at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The slots of a request, and the calls that do what it asks."""

    slots: Mapping[str, object]
    """Values for the slots of the wording."""
    stages: tuple[Stage, ...]
    """Calls in order; the arguments of a stage may depend on what earlier stages have read."""
    other_branch: frozenset[str] = frozenset()
    """Servers of both branches: a task has those of the branch not taken, too, so that they do not give it away."""
    answer: str = ""
    """The text that the agent must end with, or empty if any text will do."""
    reply: str = ""
    """A description of the answer for the request, or empty if no answer is asked for."""

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for stage in self.stages for call in stage)

    @property
    def servers(self) -> frozenset[str]:
        return self.other_branch | {SERVER_OF[name] for name, _ in self.calls}


Make = Callable[[Office, random.Random, int], Draft]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of requests."""

    make: Make
    scope: Scope
    structure: Structure
    bodies: tuple[str, ...]
    """Wordings of the request, with the draft's slots open."""


def one(name: str, /, **arguments: object) -> Stage:
    """A stage of one call."""
    return ((name, dict(arguments)),)
