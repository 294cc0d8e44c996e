"""Episodes of a run for export: one at a time, each before its branches, with the newest grade and with their tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gymcp.store import BranchRow, EpisodeRow, Run, TrajectoryStore, open_run
from gymcp.types import Trajectory

Advantages = Mapping[str, Sequence[float]]
"""Trajectory id -> [T] advantages, of a branch those of its own steps, of an episode without a score those of the first
steps, from which others went on; one without advantages is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    trajectory: Trajectory
    """The trajectory with its newest grade."""
    row: EpisodeRow
    branch: BranchRow | None = None
    """Place in the tree; None for a first episode. The trajectory has all steps of the path."""
    has_branches: bool = False
    """True if other episodes go on from it, or name it as the one that they belong to without sharing a step."""
    advantages: Sequence[float | None] | None = None
    """[T] advantages, of a branch those of its path; None if no preset was named, or if the episode does not train.

    Of an episode without a score, or one that a search stopped, None for each step after the last from which a scored
    one went on."""

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
    find_stopped: Callable[[], Set[str]] = field(default=frozenset, repr=False)
    """Reads the ids of episodes that a search stopped, by which advantages are cut."""

    def episodes(self) -> Iterator[Episode]:
        """The episodes, one in memory at a time, each followed by its branches."""
        stopped = self.find_stopped() if self.advantages else frozenset()
        for row in self.rows:
            given = {row.id: tuple(self.advantages.get(row.id, ()))}
            branches = self.branches.get((row.task, row.trial, row.attempt), ())
            parents = {branch.episode.parent for branch in branches}
            yield Episode(
                trajectory=self._load(row),
                row=row,
                has_branches=row.id in parents,
                advantages=self._choose(row, given[row.id], stopped),
            )
            for branch in branches:
                own, before = self.advantages.get(branch.episode.id, ()), given.get(branch.episode.parent or "", ())
                path = given[branch.episode.id] = (*before[: branch.shared], *own)
                yield Episode(
                    trajectory=self._load(branch.episode),
                    row=branch.episode,
                    branch=branch,
                    has_branches=branch.episode.id in parents,
                    advantages=self._choose(branch.episode, path, stopped, branch.shared),
                )

    def _choose(
        self, row: EpisodeRow, path: tuple[float, ...], stopped: Set[str], shared: int = 0
    ) -> tuple[float | None, ...] | None:
        """The advantages of an episode's path."""
        own, missing = self.advantages.get(row.id), shared + row.steps - len(path)
        if own is None or (missing if row.score is not None and row.id not in stopped else not own):
            return None
        return (*path, *(None,) * missing)

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
        yield Source(run=run, rows=rows, load=store.load, branches=branches, find_stopped=store.stopped_leaves)
