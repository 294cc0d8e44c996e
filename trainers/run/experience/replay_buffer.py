"""The replay buffer: earlier episodes of a task that are learnt again in groups which alone would teach nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby

from gymcp.errors import ConfigError
from gymcp.trainers.learner.token_rows import rows_of
from gymcp.trainers.recipe.recipe import ReplayRecipe
from gymcp.types import Json, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEpisode:
    """An episode in the buffer. Its record stays in the store that holds it."""

    id: str
    score: float
    iteration: int
    """Iteration whose weights drew it; -1 for an episode of another run."""

    @property
    def is_solved(self) -> bool:
        return self.score >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBuffer:
    """The kept episodes of each task, saved with every checkpoint."""

    tasks: Mapping[str, tuple[KeptEpisode, ...]] = field(default_factory=dict)
    """By task id, the oldest first."""

    @property
    def size(self) -> int:
        return sum(len(kept) for kept in self.tasks.values())

    def to_json(self) -> dict[str, Json]:
        """The buffer as `restore_buffer` reads it."""
        return {task: [asdict(each) for each in kept] for task, kept in self.tasks.items()}


def restore_buffer(stored: Mapping[str, Json]) -> ReplayBuffer:
    """The inverse of `ReplayBuffer.to_json`."""
    return ReplayBuffer(tasks={task: tuple(KeptEpisode(**each) for each in kept) for task, kept in stored.items()})


def remember(buffer: ReplayBuffer, records: Sequence[Trajectory], rule: ReplayRecipe, iteration: int) -> ReplayBuffer:
    """The buffer with the scored records: of each task the newest ``keep`` solved ones, and with ``recall = "alike"``
    as many that were not solved.

    An episode without a token that could be learnt is left out, and so is one that is in the buffer already.
    """
    if not rule.keep:
        return buffer
    tasks = dict(buffer.tasks)
    for record in records:
        kept = tasks.get(record.task, ())
        if record.score is None or not _has_tokens(record) or any(record.id == each.id for each in kept):
            continue
        kept = (*kept, KeptEpisode(id=record.id, score=record.score, iteration=iteration))
        solved = [each for each in kept if each.is_solved][-rule.keep :]
        others = [each for each in kept if not each.is_solved][-rule.keep :] if rule.recall == "alike" else []
        tasks[record.task] = tuple(each for each in kept if each in solved or each in others)
    return ReplayBuffer(tasks={task: kept for task, kept in tasks.items() if kept})


def choose_recalled(
    buffer: ReplayBuffer, group: Sequence[Trajectory], rule: ReplayRecipe, iteration: int, seed: int
) -> list[KeptEpisode]:
    """The kept episodes that a group of new ones recalls; empty if its own scores tell its episodes apart.

    ``failed``: a group without a success recalls solved episodes. ``alike``: a group whose scores are all equal recalls
    episodes that scored otherwise. The draw depends on seed, iteration and task alone.

    Source: arXiv:2505.16282 (ARPO for GUI agents), and the cross-context replay of arXiv:2601.19620 (R3).
    """
    scores = {record.score for record in group}
    fresh = [
        each
        for each in buffer.tasks.get(group[0].task, ())
        if not rule.max_age or iteration - each.iteration <= rule.max_age
    ]
    if rule.recall == "failed":
        fit = [] if any(record.success for record in group) else [each for each in fresh if each.is_solved]
    else:
        fit = [each for each in fresh if each.score not in scores] if len(scores) == 1 else []
    count = min(rule.per_group, len(fit), len(group) - 1)
    return random.Random(f"{seed}-replay-{iteration}-{group[0].task}").sample(fit, count) if count > 0 else []


def replace_in_groups(records: Sequence[Trajectory], recalled: Mapping[str, Sequence[Trajectory]]) -> list[Trajectory]:
    """The records with the last ones of each group replaced by those that it recalls, which join the group.

    `recalled`: by the name of the group. The size of a group stays what it was.
    """
    found: list[Trajectory] = []
    for group, members in group_records(records).items():
        earlier = [replace(record, group=group) for record in recalled.get(group, ())]
        found += [*members[: len(members) - len(earlier)], *earlier]
    return found


def group_records(records: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    """The records by the name of their group, in order."""
    groups: dict[str, list[Trajectory]] = {}
    for name, members in groupby(records, key=lambda record: record.group):
        groups.setdefault(name, []).extend(members)
    return groups


def _has_tokens(record: Trajectory) -> bool:
    try:
        return any(any(row.loss_mask) for row in rows_of(record))
    except ConfigError:
        return False
