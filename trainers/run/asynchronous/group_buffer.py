"""Groups that were planned and not yet learnt from, each with the episodes that have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gymcp.trainers.rollouts.curricula.protocol import GroupResult, PlannedGroup
from gymcp.types import Trajectory


@dataclass(slots=True, kw_only=True)
class BufferedGroup:
    """A planned group and its episodes by trial. It is complete once all of them have ended."""

    plan: PlannedGroup
    episodes: int
    records: dict[int, Trajectory] = field(default_factory=dict)

    @property
    def trials(self) -> range:
        return range(self.plan.first_trial, self.plan.first_trial + self.episodes)

    @property
    def is_complete(self) -> bool:
        return len(self.records) == self.episodes

    @property
    def in_order(self) -> list[Trajectory]:
        """The records by trial."""
        return [self.records[trial] for trial in sorted(self.records)]

    @property
    def is_lost(self) -> bool:
        """True if the group is complete and no episode has a score."""
        return self.is_complete and not any(record.outcome.has_score for record in self.records.values())

    @property
    def result(self) -> GroupResult:
        """The outcome for the curriculum."""
        scores = [record.score for record in self.in_order if record.outcome.has_score and record.score is not None]
        return GroupResult(kind=self.plan.kind, scores=tuple(scores))


class GroupBuffer:
    """The groups under way, in the order of their plan. The episodes themselves lie in the run's store."""

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._groups: list[BufferedGroup] = []

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[BufferedGroup]:
        return iter(self._groups)

    @property
    def plans(self) -> list[PlannedGroup]:
        return [group.plan for group in self._groups]

    def plan(self, groups: Sequence[PlannedGroup]) -> None:
        """Add groups whose episodes are still to be played."""
        self._groups += [BufferedGroup(plan=group, episodes=self._episodes) for group in groups]

    def add(self, record: Trajectory) -> bool:
        """Add an episode that has ended; False if its group is no longer waited for."""
        for group in self._groups:
            if group.plan.task.id == record.task and record.trial in group.trials:
                group.records[record.trial] = record
                return True
        return False

    def find_complete(self) -> list[BufferedGroup]:
        """Groups all of whose episodes have ended and one at least has a score, the first planned first."""
        return [group for group in self._groups if group.is_complete and not group.is_lost]

    def remove(self, unwanted: Callable[[BufferedGroup], bool]) -> list[BufferedGroup]:
        """Take groups out; their episodes that have not ended are no longer waited for."""
        found = [group for group in self._groups if unwanted(group)]
        self._groups = [group for group in self._groups if not any(group is each for each in found)]
        return found
