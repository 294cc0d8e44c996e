"""The record of a preset: what trajectories are compared by, and the loss that the result enters."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal, Protocol

from gymcp.trainers.credit.estimators import AdvantageTerm
from gymcp.trainers.credit.filters import TrajectoryMask
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.signals.signal import Signal
from gymcp.trainers.credit.signals.token_credit import Backup
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats
from gymcp.trainers.settings.loss import Loss
from gymcp.trainers.settings.preference import Preference
from gymcp.trainers.settings.turns import TurnByTurn

Singleton = Literal["zero", "raw"]
Norm = Literal["mean", "mean_std"]
Unit = Literal["trajectory", "step"]
Key = Literal["group", "state", "turn", "trajectory"]
REWARD = "reward"
"""Name of the column that holds the recorded score."""
GOLD = "gold"
"""Need of a preset that compares with the tasks' gold; its shaper or signal names a task that has none."""


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
    average: bool = False
    """Divide the weighted sum of a step's terms by the weights of those that are not 0: a term in which the step has
    nothing to be compared with does not dilute the others."""
    active_only: bool = False
    """Average the loss over the trajectories with an advantage in this term, instead of over all."""
    backup: Backup | None = None
    """Takes the sum of the terms as the rewards of steps, and gives each token an advantage of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Algorithm that turns recorded trajectories into advantages and a loss."""

    loss_terms: tuple[LossTerm, ...]
    loss: Loss = field(default_factory=Loss)
    shapers: tuple[Shaper, ...] = ()
    filters: tuple[Filter, ...] = ()
    needs: frozenset[str] = frozenset()
    """Inputs that the caller must add: ``gold`` tasks, or signals by name (`signals.registry.SIGNALS`)."""
    signals: tuple[Signal, ...] = ()
    """Signals with settings of their own, in place of those in the registry."""
    preference: Preference | None = None
    """Learn from pairs of steps instead of the advantages, which are then for people; None: from advantages."""
    turns: TurnByTurn | None = None
    """Updates for each index of a step, the last one first; None: one update on all steps."""

    @property
    def advantage_terms(self) -> tuple[AdvantageTerm, ...]:
        """Advantage terms of all loss terms."""
        return tuple(advantage for term in self.loss_terms for advantage in term.advantage_terms)

    def with_signal(self, old: str, new: str) -> Preset:
        """The preset whose advantage terms, and shapers with a `signal`, read column `new` in place of column `old`."""
        return replace(
            self,
            shapers=tuple(_replace_signal(each, old, new) for each in self.shapers),
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


def _replace_signal(shaper: Any, old: str, new: str) -> Any:
    if is_dataclass(shaper) and not isinstance(shaper, type) and getattr(shaper, "signal", None) == old:
        return replace(shaper, signal=new)
    return shaper


def make_single_loss(
    *advantage_terms: AdvantageTerm,
    loss: Loss | None = None,
    shapers: tuple[Shaper, ...] = (),
    needs: frozenset[str] = frozenset(),
    average: bool = False,
) -> Preset:
    """The preset whose advantage is the sum of the terms, or their average, in one loss."""
    return Preset(
        loss_terms=(LossTerm(advantage_terms=advantage_terms, average=average),),
        loss=loss or Loss(),
        shapers=shapers,
        needs=needs,
    )
