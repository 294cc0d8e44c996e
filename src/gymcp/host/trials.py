"""Numbers of the episodes of each task in a run: new ones count up, and one that was lost is tried again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gymcp.outcome import Outcome


class Trials:
    """Trials of a run by task, as `gymcp eval` numbers them."""

    def __init__(self, attempts: Mapping[tuple[str, int], Sequence[Outcome]]) -> None:
        """`attempts`: (task, trial) -> the outcomes of its attempts that the run has already."""
        self._next: dict[str, int] = defaultdict(int)
        self._lost: dict[str, set[int]] = defaultdict(set)
        for (task, trial), outcomes in attempts.items():
            self._next[task] = max(self._next[task], trial + 1)
            if outcomes[-1].runs_again:
                self._lost[task].add(trial)

    def take(self, task: str) -> int:
        """The trial of a new episode: the first that was lost, else a new one."""
        if lost := self._lost[task]:
            trial = min(lost)
            lost.remove(trial)
            return trial
        self._next[task] += 1
        return self._next[task] - 1

    def put_back(self, task: str, trial: int) -> None:
        """Note that the episode was lost, so that another one takes its trial."""
        self._lost[task].add(trial)
