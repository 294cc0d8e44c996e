"""Progress that a trained head sees in every step, as a dense reward (SPA-RL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.signals.signal import Need, SignalColumns, SignalCost, SignalModel
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats


@dataclass(frozen=True, slots=True)
class Progress:
    """Column ``progress``: the share of the episode's score that a head gives to the step.

    The head reads the last hidden state of the step's last token. It is trained beside the policy, so that its shares
    add up to the score of each episode; the authors train theirs beforehand, on episodes of the starting policy.

    Source: WangHanLinHenry/SPA-RL-Agent, prm/train_our_progress_model.py.
    """

    name: ClassVar[str] = "progress"
    describes: ClassVar[str] = "share of the score that a head gives to the step; training fits their sum to the score"
    needs: ClassVar[frozenset[Need]] = frozenset({"model"})
    cost: ClassVar[SignalCost] = SignalCost(per_episode=1)

    def compute(self, batch: StepBatch, model: SignalModel | None) -> SignalColumns:
        assert model is not None
        return SignalColumns(steps={self.name: model.head_values(self.name, "step end")})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReward:
    """Column ``progress_reward``: `alpha` times the step's progress, plus `beta` for a step that the environment took:
    a usable action of whose calls none failed.

    Source: arXiv:2505.20732; the authors tell by the words of the next observation if an action was taken.
    """

    alpha: float = 1.0
    beta: float = 0.5

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        taken = (batch.column("valid") > 0) & (batch.column("errors") == 0)
        reward = progress_reward(batch.column("progress"), taken.astype(float), alpha=self.alpha, beta=self.beta)
        return batch.with_columns(progress_reward=reward), trackers


def progress_reward(progress: Floats, taken: Floats, *, alpha: float, beta: float) -> Floats:
    """[S] shares, [S] 1 for a step that the environment took -> [S] rewards."""
    return alpha * progress + beta * taken
