"""The episodes of a run as they leave it: one at a time, as the newest grade sees them, with their tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gymcp.store import EpisodeRow, Run, TrajectoryStore, open_run
from gymcp.types import Trajectory

Advantages = Mapping[str, Sequence[float]]
"""[T] for each trajectory's id; what has none is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    trajectory: Trajectory
    """With the newest verdict on it."""
    row: EpisodeRow
    advantages: Sequence[float] | None = None
    """[T]; None where no preset was named, or the episode does not train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A run that is open to be read."""

    run: Run
    rows: tuple[EpisodeRow, ...]
    """What is exported, in the order of recording."""
    load: Callable[[str], Trajectory] = field(repr=False)
    advantages: Advantages = field(default_factory=dict)

    def episodes(self) -> Iterator[Episode]:
        """One in memory at a time."""
        for row in self.rows:
            recorded = self.load(row.id)
            graded = replace(
                recorded, outcome=row.outcome, score=row.score, components=row.components, reason=row.reason
            )
            yield Episode(trajectory=graded, row=row, advantages=self.advantages.get(row.id))


@contextmanager
def open_source(folder: Path, *, attempts: bool = False) -> Iterator[Source]:
    """The run in `folder`; `attempts`: with those that a later one replaced. Raises StoreError."""
    run = open_run(folder)
    with TrajectoryStore.open(folder) as store:
        yield Source(run=run, rows=tuple(store.summaries(latest=not attempts)), load=store.load)
