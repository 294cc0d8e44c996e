"""The graph of a batch's transitions: a node for each state of a group, an edge for each step. Every cost is linear in
the number of steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from gymcp.trainers.credit.estimators import combine_keys
from gymcp.trainers.credit.shapers import is_solved
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateGraph:
    """Transitions of a batch. Nodes are numbered from 0: the states, then a goal for each group, to which the last step
    of a solved episode leads, then a dead end for each group, to which the last step of any other episode leads.
    """

    before: Ints
    """[S]: node in which each step was taken."""
    after: Ints
    """[S]: node to which it led."""
    states: int
    """Number of states; those of different groups are different."""
    groups: int

    @property
    def nodes(self) -> int:
        return self.states + 2 * self.groups

    @property
    def goals(self) -> Ints:
        """[groups]: the goal of each group."""
        return np.arange(self.states, self.states + self.groups)

    @property
    def ends(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """[S]: true for the last step of an episode."""
        return np.asarray(self.after >= self.states)


def build_state_graph(batch: StepBatch) -> StateGraph:
    """The graph of the keys ``group`` and ``state``. Episodes are joined at the states that they share."""
    group = batch.keys["group"]
    before = combine_keys((group, batch.keys["state"]), int(batch.starts[-1]))
    states, groups = int(before.max(initial=-1)) + 1, int(group.max(initial=-1)) + 1
    after = np.empty_like(before)
    after[:-1] = before[1:]
    last = batch.starts[1:] - 1
    after[last] = states + group[last] + np.where(is_solved(batch), 0, groups)
    return StateGraph(before=before, after=after, states=states, groups=groups)


def measure_goal_distances(graph: StateGraph) -> Floats:
    """[nodes]: fewest recorded steps from each node to its group's goal; infinite if no recorded way leads there."""
    return search_back(graph.before, graph.after, graph.goals, graph.nodes)


def search_back(before: Ints, after: Ints, goals: Ints, nodes: int) -> Floats:
    """[E] edges from and to nodes -> [nodes]: fewest edges from each node to the nearest goal; infinite if there is no
    way."""
    root = nodes  # one more node, a step behind every goal, so that a single search finds all distances
    rows, columns = np.concatenate((after, np.full(len(goals), root))), np.concatenate((before, goals))
    backwards = csr_array((np.ones(len(rows)), (rows, columns)), shape=(root + 1, root + 1))
    _, parent = breadth_first_order(backwards, root, directed=True, return_predecessors=True)
    is_reached = parent >= 0
    parent = np.where(is_reached, parent, root)
    hops = is_reached.astype(float)
    while np.any(parent != root):  # each round doubles the number of hops that are counted
        hops += hops[parent]
        parent = parent[parent]
    return np.asarray(np.where(is_reached, hops - 1.0, np.inf)[:root], float)


def measure_distances_to_success(batch: StepBatch) -> Floats:
    """[S]: fewest recorded steps from the step's state to the end of a solved episode of its group; infinite for a
    state from which no recorded way leads there.

    The ways of different episodes are joined at states that they share, so a distance can be shorter than any episode.
    """
    graph = build_state_graph(batch)
    return measure_goal_distances(graph)[graph.before]


def average_by_state(graph: StateGraph, values: Floats) -> Floats:
    """[S] -> [states]: mean over the steps taken in each state."""
    count = np.bincount(graph.before, minlength=graph.states)
    total = np.bincount(graph.before, values, minlength=graph.states)
    return np.asarray(total / np.maximum(count, 1), float)
