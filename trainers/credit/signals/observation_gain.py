"""The information of a step's observation: how much likelier it makes the next action (InfoPO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.credit.estimators import AdvantageTerm, StdScale, estimate_advantage
from gymcp.trainers.credit.signals.signal import Continuation, Need, SignalColumns, SignalCost, SignalModel
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints
from gymcp.types import Sampled


@dataclass(frozen=True, slots=True)
class ObservationGain:
    """Column ``observation_gain``: mean log-probability (nats) of the next action's tokens, less that after the
    observation is replaced by a placeholder of the same length; NaN if no action of the same context follows.

    The step is credited whose action led to the observation. The authors replace the tokens of the chat template, too
    (`keep_markup` = False).

    Source: kfq20/InfoPO, verl/trainer/ppo/intrinsic_reward.py.
    """

    placeholder: str = "No information found."
    """Text in place of the observation: cut to its length, or its last token repeated."""
    keep_markup: bool = True
    """Leave the tokens of the chat template in their places, so that turns still open and end."""
    name: ClassVar[str] = "observation_gain"
    describes: ClassVar[str] = "how much likelier the step's observation makes the tokens of the next action"
    needs: ClassVar[frozenset[Need]] = frozenset({"model"})
    cost: ClassVar[SignalCost] = SignalCost(per_step=1, per_episode=1)

    def compute(self, batch: StepBatch, model: SignalModel | None) -> SignalColumns:
        assert model is not None
        column = np.full(int(batch.starts[-1]), np.nan)
        placeholder, markup = model.encode_text(self.placeholder), model.markup_ids if self.keep_markup else frozenset()
        places, asked = [], []
        for n, record in enumerate(batch.sources):
            start = int(batch.starts[n])
            for t, (step, following) in enumerate(zip(record.steps, record.steps[1:], strict=False)):
                if step.sampled is None or following.sampled is None:
                    raise ConfigError(f"{self.name}: a step of {record.env}/{record.task} has no tokens")
                masked = mask_observation(step.sampled, following.sampled, placeholder, markup)
                if masked is not None and following.sampled.ids:
                    places.append(start + t)
                    asked.append(Continuation(context=masked, ids=following.sampled.ids, group=n))
        if not places:
            return SignalColumns(steps={self.name: column})
        drawn = model.drawn_logprobs(batch)
        for place, without in zip(places, model.logprobs(asked), strict=True):
            column[place] = turn_gain(drawn[place + 1], without)
        return SignalColumns(steps={self.name: column})


def turn_gain(with_observation: Floats, without: Floats) -> float:
    """[K], [K] log-probabilities (nats) of the next action's tokens -> the mean of their differences."""
    return float((with_observation - without).mean())


def mask_observation(
    step: Sampled, following: Sampled, placeholder: Sequence[int], markup: frozenset[int]
) -> tuple[int, ...] | None:
    """The prompt of the next step with the observation between the two actions masked.

    None if the next step does not continue the context of this one, or if nothing is between them.
    """
    known = step.prompt_ids + step.ids
    if following.prompt_ids[: len(known)] != known or len(following.prompt_ids) == len(known):
        return None
    observation = following.prompt_ids[len(known) :]
    filler = iter(placeholder)
    last = placeholder[-1]
    return known + tuple(token if token in markup else next(filler, last) for token in observation)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedInformation:
    """InfoPO: add the information of observations to the advantage, where the outcomes of a group do not differ.

    A + `beta` gate ratio A_info: A_info is ``observation_gain`` in standard deviations from the mean over the steps of
    the group that have one; gate = 1 - sigmoid(std of the group's scores / `temperature`); ratio = min(1, max(std A, 1)
    / std A_info), over the steps of the group. The authors let `beta` decay over epochs, and divide by an action's
    tokens; here it is constant, and each token of an action gets the whole.

    Source: kfq20/InfoPO, verl/trainer/ppo/core_algos.py.
    """

    beta: float = 0.1
    temperature: float = 0.05

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        signal = batch.column("observation_gain")
        present = batch.with_columns(observation_gain=np.where(signal == 0, np.nan, signal))
        term = AdvantageTerm(signal="observation_gain", unit="step", returns="none", scale=StdScale())
        intrinsic = estimate_advantage(term, present)
        group = batch.keys["group"]
        scores, of_scores = batch.totals(batch.column("reward")), group[batch.starts[:-1]]
        gate = information_gate(group_deviation(scores, of_scores), self.temperature)
        ratio = magnitude_ratio(group_deviation(advantage, group), group_deviation(intrinsic, group))
        return advantage + self.beta * (gate * ratio)[group] * intrinsic


def information_gate(deviation: Floats, temperature: float = 0.05) -> Floats:
    """[G] standard deviations of outcomes -> [G]: a half if all outcomes are equal, near 0 once they differ."""
    return 1.0 / (1.0 + np.exp(np.minimum(deviation / temperature, 700.0)))


def magnitude_ratio(of_outcomes: Floats, of_information: Floats) -> Floats:
    """[G], [G] standard deviations -> [G]: the factor that keeps information from outweighing the outcomes, at most
    1."""
    largest = np.maximum(of_outcomes, 1.0)
    return np.minimum(1.0, np.divide(largest, of_information, out=np.ones_like(largest), where=of_information > 0))


def group_deviation(values: Floats, group: Ints) -> Floats:
    """[X] values, [X] group numbers -> [G]: standard deviation (n - 1) within each group; 0 for a group of one."""
    count = np.bincount(group)
    mean = np.bincount(group, values) / np.maximum(count, 1)
    squares = np.bincount(group, (values - mean[group]) ** 2)
    return np.sqrt(squares / np.maximum(count - 1, 1))
