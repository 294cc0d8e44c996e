"""A critic that names the wrong steps of an episode, and the credit that follows from it (CAPO).

Of the papers called CAPO this is arXiv:2508.02298, in which a language model criticises all steps of a response at
once. Here the critic is scripted, with a known rate of errors: what is shown is the mechanism, not how well a model
criticises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gymcp.errors import ConfigError
from gymcp.seeds import derive_seed
from gymcp.trainers.credit.diagnosis.progress import Mask, find_new_gold_calls
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.signals.signal import Need, SignalColumns, SignalCost, SignalModel
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats
from gymcp.types import Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Critique:
    """Column ``critique``: 1 for a step that the scripted critic calls wrong, else 0.

    Wrong is a step that is not usable, and one that has calls and makes no gold call that the episode had not made.
    Each verdict is reversed with probability `error_rate`; the draw depends on `seed`, the episode and the step alone.
    """

    error_rate: float = 0.0
    seed: int = 0
    name: ClassVar[str] = "critique"
    describes: ClassVar[str] = "1 for a step that a scripted critic, who knows the gold calls, calls wrong; else 0"
    needs: ClassVar[frozenset[Need]] = frozenset({"gold"})
    cost: ClassVar[SignalCost] = SignalCost()

    def compute(self, batch: StepBatch, model: SignalModel | None) -> SignalColumns:
        if not batch.sources:
            raise ConfigError("critique: needs recorded trajectories, and the batch has bare columns")
        verdicts = [self._judge(record, batch.gold.get(record.task)) for record in batch.sources]
        return SignalColumns(steps={self.name: np.concatenate(verdicts)})

    def _judge(self, record: Trajectory, task: Task | None) -> Floats:
        if task is None:
            raise ConfigError(f"critique: task '{record.task}' is not at hand, so its gold calls are not known")
        check_gold_calls(task)
        wrong = find_wrong_steps(record, task)
        draw = np.random.default_rng(derive_seed("critic", self.seed, record.env, record.task, record.trial))
        return np.where(draw.random(len(wrong)) < self.error_rate, ~wrong, wrong).astype(float)


def check_gold_calls(task: Task) -> None:
    """Raise ConfigError for a task without gold calls, whose steps a critic cannot judge."""
    if not any(turn.calls for turn in task.gold):
        raise ConfigError(f"critique: task '{task.id}' has no gold calls; choose a preset that needs none")


def find_wrong_steps(record: Trajectory, task: Task) -> Mask:
    """[T]: true for a step that is not usable, and for one with calls of which none is a new gold call."""
    made = np.array(find_new_gold_calls(record, task), bool)
    calls = np.array([bool(step.action.tool_calls) for step in record.steps], bool)
    usable = np.array([step.valid for step in record.steps], bool)
    return np.asarray(~usable | (calls & ~made), bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class CritiqueReward:
    """Column ``criticised``: `whole` times the episode's score, less `process` on a step that the critic calls wrong.

    The weights are asymmetric, so that a step of a solved episode keeps a reward even if it is called wrong.

    Source: arXiv:2508.02298, as read in summaries; the equation itself could not be read.
    """

    whole: float = 2.0
    process: float = 1.0

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        score = np.asarray(batch.per_step(batch.totals(batch.column("reward"))), float)
        criticised = self.whole * score - self.process * batch.column("critique")
        return batch.with_columns(criticised=criticised), trackers
