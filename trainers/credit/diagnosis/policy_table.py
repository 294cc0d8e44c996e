"""The tabular policy of a record: the gradient of its table, and the noise of that gradient.

A visit is one episode in one state, a cell is one action in one state. pi(a), the probability of an action, is its
frequency among the first actions of the other visits of the state. Later actions would bias it: a visit is as long as
its actions make it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from gymcp.trainers.credit.estimators import combine_keys
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints

Mask = npt.NDArray[np.bool_]
MIN_VISITS = 2
"""Fewest visits of a state in the table: the policy in one visit is known from the others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouping:
    """Steps by a code."""

    code: Ints
    """[S], from 0 without gaps."""
    matrix: csr_array

    @classmethod
    def by(cls, *keys: Ints) -> Grouping:
        """Steps that agree in all keys are together."""
        code = combine_keys(keys, len(keys[0]))
        entries = np.ones(len(code)), (code, np.arange(len(code)))
        return cls(code=code, matrix=csr_array(entries, shape=(int(code.max(initial=-1)) + 1, len(code))))

    def sum(self, values: Floats) -> Floats:
        """[S, P] -> [codes, P]."""
        return np.asarray(self.matrix @ values)

    def total(self, values: Floats) -> Floats:
        """[S, P] -> [S, P]: the sum over the steps with the same code."""
        return np.asarray(self.sum(values)[self.code])

    @property
    def first(self) -> Floats:
        """[S, 1]: 1 on the first step of each code, else 0."""
        mark = np.zeros((len(self.code), 1))
        mark[np.unique(self.code, return_index=True)[1]] = 1.0
        return mark


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyTable:
    """The steps in states with at least `MIN_VISITS` visits."""

    steps: Ints
    """[S]: their numbers in the batch; S counts only them."""
    state: Grouping
    visit: Grouping
    cell: Grouping
    of_visit: Grouping
    """By action and visit."""
    state_of_cell: Ints
    first: Floats
    """[S, 1]: 1 on the first step of each visit."""

    @classmethod
    def of(cls, batch: StepBatch, actions: Ints) -> PolicyTable:
        """The table of a batch, given the code of each step's action, [S]."""
        keys = (batch.keys["group"], batch.keys["state"])
        visit, state = Grouping.by(*keys, batch.keys["trajectory"]), Grouping.by(*keys)
        steps = np.flatnonzero(state.total(visit.first)[:, 0] >= MIN_VISITS)
        keys, trajectory = (keys[0][steps], keys[1][steps]), batch.keys["trajectory"][steps]
        state, cell, visit = Grouping.by(*keys), Grouping.by(*keys, actions[steps]), Grouping.by(*keys, trajectory)
        return cls(
            steps=steps,
            state=state,
            visit=visit,
            cell=cell,
            of_visit=Grouping.by(*keys, trajectory, actions[steps]),
            state_of_cell=state.code[np.unique(cell.code, return_index=True)[1]],
            first=visit.first,
        )

    def gradient(self, factors: Floats, chosen: Mask) -> Floats:
        """[S, P] factors, [S] -> [cells, P]: gradient of the table from the visits that are chosen.

        A visit adds, to each action a of its state, the sum of (B - m) (1[a] - pi(a)) over its steps. The mean factor m
        of the state's steps that are not chosen changes no expectation, and takes off a baseline that depends on the
        episodes that pi is counted in.
        """
        mask = chosen.astype(float)[:, None]
        rest = self.state.total(factors * (1 - mask)) / np.maximum(self.state.total(1 - mask), 1)
        own, first = (factors - rest) * mask, self.first * mask
        others = self.state.total(first) - 1
        share = np.divide(self.visit.total(own), others, out=np.zeros_like(own), where=others > 0)
        return self.cell.sum(own - first * (self.state.total(first * share) - share))

    def count(self, chosen: Mask) -> Floats:
        """[S] -> [states]: visits that are chosen."""
        return self.state.sum(self.first * chosen[:, None])[:, 0]

    def noise(self, factors: Floats) -> Floats:
        """[S, P] -> [states, P]: sum over the visits of the squared length of what each adds to the gradient."""
        others = self.state.total(self.first) - 1
        likelihood = (self.cell.total(self.first) - self.of_visit.total(self.first)) / others
        collision = self.state.sum(self.first * likelihood) / self.state.sum(self.first)
        whole = self.visit.total(factors)
        apart = self.state.sum(factors * (self.of_visit.total(factors) - 2 * whole * likelihood))
        return np.asarray(apart + collision * self.state.sum(factors * whole))


def sum_rows(rows: Floats, code: Ints) -> Floats:
    """[R, P] rows and [R] codes from 0 -> [codes, P]."""
    total = np.zeros((int(code.max(initial=-1)) + 1, rows.shape[1]))
    np.add.at(total, code, rows)
    return total
