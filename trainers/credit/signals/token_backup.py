"""Bellman backup within an action: an advantage for every token, from a critic's value before each (POAD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.credit.returns import returns_with_factors
from gymcp.trainers.credit.signals.signal import Need, SignalColumns, SignalCost, SignalModel
from gymcp.trainers.credit.signals.token_credit import TokenCredit, count_drawn, count_tokens, value_of_first
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints

TOKEN_VALUE = "token_value"


@dataclass(frozen=True, slots=True)
class TokenValue:
    """Column ``token_value`` of tokens: the critic's prediction of the return from each drawn token on; of steps: that
    of its first token."""

    name: ClassVar[str] = TOKEN_VALUE
    describes: ClassVar[str] = "the critic's prediction of the return from each token on, which training fits"
    needs: ClassVar[frozenset[Need]] = frozenset({"model"})
    cost: ClassVar[SignalCost] = SignalCost(per_episode=1)

    def compute(self, batch: StepBatch, model: SignalModel | None) -> SignalColumns:
        assert model is not None
        values = model.head_values(self.name, "token")
        return SignalColumns(steps={self.name: value_of_first(values, count_drawn(batch))}, tokens={self.name: values})


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBackup:
    """Advantage of each token: d + g lam (advantage of the next), with d = g (value of the next) - value.

    Within an action g is 1, and its last token gets the reward of the step and g = gamma. So a token is credited for
    what it changes in the prediction, and the return of an action does not depend on its length. The authors prove that
    this leaves the optimum of whole actions as it is; that their code, which could not be read, uses `lam` within
    actions as between them is assumed.

    Source: arXiv:2405.15821.
    """

    gamma: float = 0.99
    lam: float = 0.95
    whiten: bool = True
    """Subtract the mean over all tokens of the batch, and divide by the deviation."""

    def __call__(self, batch: StepBatch, rewards: Floats) -> TokenCredit:
        """[S] rewards -> [K]. A batch of bare columns has one token a step, whose value is its column."""
        values, counts = token_values(batch), count_tokens(batch)
        found = backup_tokens(rewards, values, counts, batch.starts, gamma=self.gamma, lam=self.lam)
        returns = found + values
        if self.whiten and len(found) > 1:
            found = (found - found.mean()) / np.sqrt(found.var(ddof=1) + 1e-8)
        elif self.whiten:
            found = np.zeros_like(found)
        return TokenCredit(advantages=found, returns=returns)


def backup_tokens(rewards: Floats, values: Floats, counts: Ints, starts: Ints, *, gamma: float, lam: float) -> Floats:
    """[S] rewards, [K] values, [S] tokens of each step, [N + 1] first step of each trajectory -> [K] advantages."""
    is_last = np.zeros(len(values), bool)
    ends = np.cumsum(counts)
    has_tokens = counts > 0
    is_last[ends[has_tokens] - 1] = True
    discount = np.where(is_last, gamma, 1.0)
    over = np.concatenate(([0], ends))[starts[1:]] - 1
    discount[over[over >= 0]] = 0.0
    following = np.append(values[1:], 0.0)
    reward = np.zeros(len(values))
    reward[ends[has_tokens] - 1] = rewards[has_tokens]
    return returns_with_factors(reward + discount * following - values, discount * lam)


def token_values(batch: StepBatch) -> Floats:
    """[K] values of tokens. Raises ConfigError if there are none."""
    if batch.token_counts is None:
        return batch.column(TOKEN_VALUE)
    if TOKEN_VALUE not in batch.token_columns:
        raise ConfigError(f"credit: the preset needs {TOKEN_VALUE} of every token, which nothing has computed")
    return batch.token_columns[TOKEN_VALUE]
