"""Recorded trajectories as columns: what credit assignment reads. Every cost is linear in the number of steps."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from gymcp.errors import ConfigError
from gymcp.trainers.settings.arrays import Floats, Ints
from gymcp.types import Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepBatch:
    """[S] steps of [N] trajectories, in the order of time within each, one trajectory after the other.

    Columns that every batch has: ``reward`` (the environment's), ``valid`` (1 where the step was usable), ``calls``
    (tool calls of the step), ``errors`` (those that failed), ``cost`` (the price of its calls: `ToolResult.cost`),
    ``tokens`` (drawn in the step; 1 where none are known).
    Keys that every batch has: ``group``, ``trajectory``, ``state`` (the anchor), ``turn`` (index of the step).
    """

    starts: Ints
    """[N + 1]: where each trajectory begins; the last is S."""
    columns: Mapping[str, Floats]
    """Each [S]. NaN: the step has none, which is not 0."""
    keys: Mapping[str, Ints]
    """Each [S]: equal numbers mean the same."""
    tasks: tuple[str, ...]
    """[N]: ``environment/task``, what trackers remember by."""
    sources: tuple[Trajectory, ...] = ()
    """[N]: the records; empty where the batch was made of bare columns."""
    gold: Mapping[str, Task] = field(default_factory=dict)
    """Tasks by id, for shapers that compare with gold."""

    @property
    def lengths(self) -> Ints:
        """[N]: steps of each trajectory."""
        return np.diff(self.starts)

    def column(self, name: str) -> Floats:
        """[S]. Raises ConfigError where nothing has made that column."""
        if name not in self.columns:
            raise ConfigError(f"credit: no column '{name}' in the batch; have {', '.join(sorted(self.columns))}")
        return self.columns[name]

    def with_columns(self, **columns: Floats) -> StepBatch:
        return replace(self, columns={**self.columns, **columns})

    def with_keys(self, **keys: Ints) -> StepBatch:
        return replace(self, keys={**self.keys, **keys})

    def per_step(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """[N] -> [S]: the trajectory's value on each of its steps."""
        return np.repeat(values, self.lengths)

    def totals(self, column: Floats) -> Floats:
        """[S] -> [N]: the sum over each trajectory, NaN counting as nothing."""
        return np.add.reduceat(np.nan_to_num(column), self.starts[:-1]) if len(self.tasks) else np.zeros(0)

    def keep(self, kept: npt.NDArray[np.bool_]) -> StepBatch:
        """[N] -> the batch of the trajectories for which `kept` holds."""
        steps = np.repeat(kept, self.lengths)
        chosen = np.flatnonzero(kept).tolist()
        return replace(
            self,
            starts=np.concatenate(([0], np.cumsum(self.lengths[kept]))),
            columns={name: column[steps] for name, column in self.columns.items()},
            keys={name: key[steps] for name, key in self.keys.items()},
            tasks=tuple(self.tasks[n] for n in chosen),
            sources=tuple(self.sources[n] for n in chosen) if self.sources else (),
        )


def codes(values: Iterable[Hashable]) -> Ints:
    """[S] -> [S]: the same number for equal values, counted from 0 by first appearance."""
    seen: dict[Hashable, int] = {}
    return np.fromiter((seen.setdefault(value, len(seen)) for value in values), dtype=np.int64)


def batch_of_columns(
    rewards: Sequence[Sequence[float]],
    groups: Sequence[Hashable],
    anchors: Sequence[Sequence[Hashable]] | None = None,
    **columns: Sequence[Sequence[float]],
) -> StepBatch:
    """[N, T_n] rewards, [N] groups, [N, T_n] anchors and more columns -> a batch. No anchors: all states differ."""
    lengths = np.array([len(row) for row in rewards], dtype=np.int64)
    if not lengths.all():
        raise ConfigError("credit: a trajectory without a step has nothing to give credit to")
    steps = int(lengths.sum())
    ones, zeros = np.ones(steps), np.zeros(steps)
    flat = {name: np.array([value for row in rows for value in row], float) for name, rows in columns.items()}
    state = codes(anchor for row in anchors for anchor in row) if anchors is not None else np.arange(steps)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    return StepBatch(
        starts=starts,
        columns={
            "reward": np.array([value for row in rewards for value in row], float),
            "valid": ones,
            "calls": zeros,
            "errors": zeros,
            "cost": zeros,
            "tokens": ones,
            **flat,
        },
        keys={
            "group": np.repeat(codes(groups), lengths),
            "trajectory": np.repeat(np.arange(len(lengths)), lengths),
            "state": state,
            "turn": np.arange(steps) - np.repeat(starts[:-1], lengths),
        },
        tasks=tuple(str(group) for group in groups),
    )


def batch_of(trajectories: Iterable[Trajectory], tasks: Mapping[str, Task] | None = None) -> StepBatch:
    """The batch of those records that train: no infrastructure failure is among them, and none without a step.

    The score of the record is the reward of its last step, whatever was graded again since. The group is the record's,
    and anchors count within it. Raises ConfigError where nothing is left to train on.
    """
    kept = [each for each in trajectories if each.outcome.has_score and each.score is not None and each.steps]
    if not kept:
        raise ConfigError("credit: no trajectory with a score and a step is left to train on")
    steps = [step for each in kept for step in each.steps]
    lengths = np.array([len(each.steps) for each in kept], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    reward = np.zeros(len(steps))
    reward[starts[1:] - 1] = [each.score or 0.0 for each in kept]
    results = [step.results for step in steps]
    return StepBatch(
        starts=starts,
        columns={
            "reward": reward,
            "valid": np.array([step.valid for step in steps], float),
            "calls": np.array([len(each) for each in results], float),
            "errors": np.array([sum(result.is_error for result in each) for each in results], float),
            "cost": np.array([math.fsum(result.cost for result in each) for each in results], float),
            "tokens": np.array([len(step.sampled.ids) if step.sampled else 1 for step in steps], float),
        },
        keys={
            "group": np.repeat(codes(each.group for each in kept), lengths),
            "trajectory": np.repeat(np.arange(len(kept)), lengths),
            "state": codes(step.state_key for step in steps),
            "turn": np.arange(len(steps)) - np.repeat(starts[:-1], lengths),
        },
        tasks=tuple(f"{each.env}/{each.task}" for each in kept),
        sources=tuple(kept),
        gold=tasks or {},
    )
