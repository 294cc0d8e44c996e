"""Signals that a model in training gives to every step: entropies and log-probabilities of its tokens, and the critic's
value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gymcp.trainers.credit.signals.signal import Need, SignalColumns, SignalCost, SignalModel
from gymcp.trainers.credit.signals.token_credit import count_drawn, value_of_first
from gymcp.trainers.credit.step_batch import StepBatch


@dataclass(frozen=True, slots=True)
class Entropy:
    """Column ``entropy``: mean entropy (nats) of the distributions that the step's tokens were drawn from."""

    name: ClassVar[str] = "entropy"
    describes: ClassVar[str] = "mean entropy of the step's token distributions, which the current weights give"
    needs: ClassVar[frozenset[Need]] = frozenset({"model"})
    cost: ClassVar[SignalCost] = SignalCost(per_episode=1)

    def compute(self, batch: StepBatch, model: SignalModel | None) -> SignalColumns:
        assert model is not None
        return SignalColumns(steps={self.name: model.entropies(batch)})


@dataclass(frozen=True, slots=True)
class Logprob:
    """Column ``logprob``: mean log-probability (nats) of the tokens drawn in the step."""

    name: ClassVar[str] = "logprob"
    describes: ClassVar[str] = "mean log-probability of the step's tokens, which the current weights give"
    needs: ClassVar[frozenset[Need]] = frozenset({"model"})
    cost: ClassVar[SignalCost] = SignalCost(per_episode=1)

    def compute(self, batch: StepBatch, model: SignalModel | None) -> SignalColumns:
        assert model is not None
        of_steps = model.drawn_logprobs(batch)
        means = [float(of_tokens.mean()) if len(of_tokens) else 0.0 for of_tokens in of_steps]
        return SignalColumns(steps={self.name: np.array(means)})


TOKEN_ENTROPY = "token_entropy"


@dataclass(frozen=True, slots=True)
class TokenEntropy:
    """Column ``token_entropy`` of tokens: entropy (nats) of the distribution that each was drawn from; of steps: that
    of its first token."""

    name: ClassVar[str] = TOKEN_ENTROPY
    describes: ClassVar[str] = "entropy of each token's distribution, which the current weights give"
    needs: ClassVar[frozenset[Need]] = frozenset({"model"})
    cost: ClassVar[SignalCost] = SignalCost(per_episode=1)

    def compute(self, batch: StepBatch, model: SignalModel | None) -> SignalColumns:
        assert model is not None
        of_tokens = np.concatenate(model.drawn_entropies(batch))
        first = value_of_first(of_tokens, count_drawn(batch))
        return SignalColumns(steps={self.name: first}, tokens={self.name: of_tokens})


@dataclass(frozen=True, slots=True)
class Value:
    """Column ``value``: the critic's prediction of the return from the step on."""

    name: ClassVar[str] = "value"
    describes: ClassVar[str] = "the critic's prediction of the return, which training fits"
    needs: ClassVar[frozenset[Need]] = frozenset({"model"})
    cost: ClassVar[SignalCost] = SignalCost(per_episode=1)

    def compute(self, batch: StepBatch, model: SignalModel | None) -> SignalColumns:
        assert model is not None
        return SignalColumns(steps={self.name: model.values(batch)})
