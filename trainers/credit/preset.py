"""The record of a preset: what trajectories are compared by, and the loss that the result enters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from gymcp.trainers.credit.estimators import AdvantageTerm
from gymcp.trainers.credit.filters import TrajectoryMask
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats
from gymcp.trainers.settings.loss import Loss

Singleton = Literal["zero", "raw"]
Norm = Literal["mean", "mean_std"]
Unit = Literal["trajectory", "step"]
Key = Literal["group", "state", "turn", "trajectory"]
REWARD = "reward"
"""Name of the column that holds the recorded score."""
GOLD = "gold"
"""Need of a preset that compares with the tasks' gold; its shaper names a task that has none."""
MODEL_COLUMNS = frozenset({"entropy", "value"})
"""Needs of presets that only the model in training can give."""


class Filter(Protocol):
    def __call__(self, batch: StepBatch) -> TrajectoryMask: ...


class Shaper(Protocol):
    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]: ...


class Transform(Protocol):
    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """Weighted sum of advantage terms that enters a loss of its own."""

    advantage_terms: tuple[AdvantageTerm, ...]
    transforms: tuple[Transform, ...] = ()
    weight: float = 1.0
    active_only: bool = False
    """Average the loss over the trajectories with an advantage in this term, instead of over all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Algorithm that turns recorded trajectories into advantages and a loss."""

    loss_terms: tuple[LossTerm, ...]
    loss: Loss = field(default_factory=Loss)
    shapers: tuple[Shaper, ...] = ()
    filters: tuple[Filter, ...] = ()
    needs: frozenset[str] = frozenset()
    """Inputs that the caller must add: ``gold`` tasks, or ``entropy`` or ``value`` columns."""

    @property
    def advantage_terms(self) -> tuple[AdvantageTerm, ...]:
        """Advantage terms of all loss terms."""
        return tuple(advantage for term in self.loss_terms for advantage in term.advantage_terms)

    def with_signal(self, old: str, new: str) -> Preset:
        """The preset whose advantage terms read column `new` in place of column `old`."""
        return replace(
            self,
            loss_terms=tuple(
                replace(
                    term,
                    advantage_terms=tuple(
                        replace(advantage, signal=new) if advantage.signal == old else advantage
                        for advantage in term.advantage_terms
                    ),
                )
                for term in self.loss_terms
            ),
        )


def make_single_loss(
    *advantage_terms: AdvantageTerm,
    loss: Loss | None = None,
    shapers: tuple[Shaper, ...] = (),
    needs: frozenset[str] = frozenset(),
) -> Preset:
    """The preset whose advantage is the sum of the terms, in one loss."""
    return Preset(
        loss_terms=(LossTerm(advantage_terms=advantage_terms),),
        loss=loss or Loss(),
        shapers=shapers,
        needs=needs,
    )
