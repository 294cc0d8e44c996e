"""The protocol of a curriculum, and the state that it carries from iteration to iteration and into checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from gymcp.agents.runner.trees.allocation import expected_rate
from gymcp.types import Json, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTally:
    """Tasks and episodes of one kind of tasks (family and level) so far."""

    made: int = 0
    """Tasks that were planned: the number of the next one. Of a single task: the number of its next episode."""
    solved: float = 0.0
    """Solved episodes, older ones with a smaller weight."""
    failed: float = 0.0
    """Episodes with less than the full score, weighted likewise."""

    @property
    def rate(self) -> float:
        """Expected success rate: the mean of a Beta distribution that starts with one success and one failure."""
        return expected_rate(self.solved, self.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumState:
    """Progress of a curriculum, saved with every checkpoint."""

    groups: int = 0
    """Groups that were planned so far."""
    kinds: Mapping[str, KindTally] = field(default_factory=dict)
    """By the name of the kind; empty if the curriculum does not tell kinds apart. A task is a kind, named by its id, if
    tasks are chosen, or episodes allocated, by task."""
    waiting: tuple[str, ...] = ()
    """Kinds of failed groups from which no task has been generated yet, the oldest first."""

    def tally(self, kind: str) -> KindTally:
        """The tally of a kind; zeros before its first task."""
        return self.kinds.get(kind, KindTally())

    def with_tally(self, kind: str, tally: KindTally) -> CurriculumState:
        return replace(self, kinds={**self.kinds, kind: tally})

    def to_json(self) -> dict[str, Json]:
        """The state as `restore_curriculum` reads it."""
        return {**asdict(self), "waiting": list(self.waiting)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """One task to play with a group of episodes."""

    task: Task
    first_trial: int = 0
    """Number of the group's first episode: a task that is played again goes on counting."""
    kind: str = ""
    """Name of its kind; empty if the curriculum does not tell kinds apart."""
    episodes: int = 0
    """Number of its episodes; 0: as many as ``rollout.episodes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """Outcome of a planned group of episodes."""

    kind: str
    scores: tuple[float, ...]
    """Scores of the episodes that have one."""


class Curriculum(Protocol):
    """Chooses tasks. Both methods are pure functions, so a resumed run plays the tasks of an uninterrupted one."""

    def plan(self, state: CurriculumState, count: int) -> tuple[list[PlannedGroup], CurriculumState]:
        """The next `count` groups, and the state after they were planned."""
        ...

    def observe(self, state: CurriculumState, results: Sequence[GroupResult]) -> CurriculumState:
        """The state after these groups were played."""
        ...


def restore_curriculum(stored: Mapping[str, Json]) -> CurriculumState:
    """The inverse of `CurriculumState.to_json`."""
    return CurriculumState(
        groups=int(stored["groups"]),
        kinds={kind: KindTally(**tally) for kind, tally in stored["kinds"].items()},
        waiting=tuple(stored["waiting"]),
    )


def count_result(tally: KindTally, scores: Sequence[float], memory: float) -> KindTally:
    """The tally after one more group: earlier episodes count `memory` times as much as before it."""
    if not scores:
        return tally
    solved = sum(score >= 1.0 for score in scores)
    return replace(tally, solved=memory * tally.solved + solved, failed=memory * tally.failed + len(scores) - solved)
