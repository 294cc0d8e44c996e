"""Episodes of a run for export: one at a time, with the newest grade and with their tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gymcp.store import EpisodeRow, Run, TrajectoryStore, open_run
from gymcp.types import Trajectory

Advantages = Mapping[str, Sequence[float]]
"""Trajectory id -> [T] advantages; a trajectory without advantages is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    trajectory: Trajectory
    """The trajectory with its newest grade."""
    row: EpisodeRow
    advantages: Sequence[float] | None = None
    """[T] advantages; None if no preset was named, or if the episode does not train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A run that is open for reading."""

    run: Run
    rows: tuple[EpisodeRow, ...]
    """Rows of the episodes to export, in the order of recording."""
    load: Callable[[str], Trajectory] = field(repr=False)
    advantages: Advantages = field(default_factory=dict)

    def episodes(self) -> Iterator[Episode]:
        """The episodes, one in memory at a time."""
        for row in self.rows:
            recorded = self.load(row.id)
            graded = replace(
                recorded, outcome=row.outcome, score=row.score, components=row.components, reason=row.reason
            )
            yield Episode(trajectory=graded, row=row, advantages=self.advantages.get(row.id))


@contextmanager
def open_source(folder: Path, *, attempts: bool = False) -> Iterator[Source]:
    """The run in `folder`; `attempts`: include attempts that a later one replaced. Raises StoreError."""
    run = open_run(folder)
    with TrajectoryStore.open(folder) as store:
        yield Source(run=run, rows=tuple(store.summaries(latest=not attempts)), load=store.load)
