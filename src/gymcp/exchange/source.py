"""Episodes of a run for export: one at a time, each before its branches, with the newest grade and with their tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gymcp.store import BranchRow, EpisodeRow, Run, TrajectoryStore, open_run
from gymcp.types import Trajectory

Advantages = Mapping[str, Sequence[float]]
"""Trajectory id -> [T] advantages, of a branch those of its own steps; one without advantages is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    trajectory: Trajectory
    """The trajectory with its newest grade."""
    row: EpisodeRow
    branch: BranchRow | None = None
    """Place in the tree; None for a first episode. The trajectory has all steps of the path."""
    advantages: Sequence[float] | None = None
    """[T] advantages; None if no preset was named, or if the episode does not train. Of a branch, those of its path."""

    @property
    def shared(self) -> int:
        """Number of steps that another episode has played; 0 for a first episode."""
        return 0 if self.branch is None else self.branch.shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A run that is open for reading."""

    run: Run
    rows: tuple[EpisodeRow, ...]
    """Rows of the first episodes to export, in the order of recording."""
    load: Callable[[str], Trajectory] = field(repr=False)
    advantages: Advantages = field(default_factory=dict)
    branches: Mapping[tuple[str, int, int], Sequence[BranchRow]] = field(default_factory=dict)
    """(task, trial, attempt) -> what branched off the episode, parents first."""

    def episodes(self) -> Iterator[Episode]:
        """The episodes, one in memory at a time, each followed by its branches."""
        for row in self.rows:
            given = {row.id: self.advantages.get(row.id)}
            yield Episode(trajectory=self._load(row), row=row, advantages=given[row.id])
            for branch in self.branches.get((row.task, row.trial, row.attempt), ()):
                own, before = self.advantages.get(branch.episode.id), given.get(branch.episode.parent or "")
                path = None if own is None or before is None else (*before[: branch.shared], *own)
                given[branch.episode.id] = path
                yield Episode(trajectory=self._load(branch.episode), row=branch.episode, branch=branch, advantages=path)

    def _load(self, row: EpisodeRow) -> Trajectory:
        """The episode as its newest grade sees it."""
        recorded = self.load(row.id)
        return replace(recorded, outcome=row.outcome, score=row.score, components=row.components, reason=row.reason)


@contextmanager
def open_source(folder: Path, *, attempts: bool = False) -> Iterator[Source]:
    """The run in `folder`; `attempts`: include attempts that a later one replaced. Raises StoreError."""
    run = open_run(folder)
    with TrajectoryStore.open(folder) as store:
        branches: dict[tuple[str, int, int], list[BranchRow]] = {}
        for each in store.branches(latest=not attempts):
            branches.setdefault((each.episode.task, each.episode.trial, each.episode.attempt), []).append(each)
        rows = tuple(store.summaries(latest=not attempts))
        yield Source(run=run, rows=rows, load=store.load, branches=branches)
