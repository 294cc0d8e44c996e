"""Shapers of the presets that read the graph of a batch's states: keys of nodes, and columns of their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.credit.anchors import Anchor, anchor_codes, check_state_keys, similar_text_codes
from gymcp.trainers.credit.estimators import ROUNDING_SHARE, combine_keys
from gymcp.trainers.credit.graph.state_graph import (
    StateGraph,
    average_by_state,
    build_state_graph,
    measure_goal_distances,
)
from gymcp.trainers.credit.returns import returns_to_go
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints

Nodes = Literal[Anchor, "similar"]
"""Rule that says which steps are in one state: an anchor, or resemblance of the last observations."""
SIMILAR = 0.95
"""Ratio of `difflib` from which on two texts resemble each other, as in verl-agent."""
KEYLESS: frozenset[Nodes] = frozenset({"turn", "text", "similar"})
"""Rules that read no state key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNodes:
    """Key ``state``: equal for steps of a group that are in one state, as the rule `nodes` tells.

    recorded: the environment's own key, a digest of the world and of the last observation. text: the last observation
    alone, as the authors of these methods have it. similar: the same, and texts that resemble the first one of a state
    are in that state. turn: the index of the step. Raises ConfigError for records without state keys, unless the rule
    reads none.
    """

    nodes: Nodes = "recorded"

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        if self.nodes == "recorded":
            check_state_keys(batch.sources)
            return batch, trackers
        if not batch.sources:
            raise ConfigError(f"credit: nodes = '{self.nodes}' needs recorded trajectories; the batch has bare columns")
        if self.nodes == "similar":
            return batch.with_keys(state=similar_text_codes(batch.sources, SIMILAR)), trackers
        if self.nodes not in KEYLESS:
            check_state_keys(batch.sources)
        return batch.with_keys(state=anchor_codes(batch.sources, self.nodes)), trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryKeys:
    """Keys ``history0`` to ``historyK``: equal for steps of a group in the same state that was reached through the same
    0 to K states.

    A step with fewer steps before it shares its key with no other.
    """

    length: int

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        node = combine_keys((batch.keys["group"], batch.keys["state"]), int(batch.starts[-1]))
        keys: dict[str, Ints] = {"history0": node}
        history = node
        for number in range(1, self.length + 1):
            has_history = batch.keys["turn"] >= number
            earlier = np.zeros_like(node)
            earlier[number:] = node[:-number]
            joined = combine_keys((history, earlier), len(node))
            history = np.where(has_history, joined, len(node) + np.arange(len(node)))
            history = keys[f"history{number}"] = combine_keys((history,), len(node))
        return batch.with_keys(**keys), trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalDistance:
    """Column ``nearness``: gamma^d for a step to a state that is d recorded steps from the end of a solved episode.

    The distance goes over the transitions of all episodes of the group. A state from which none leads there is one step
    farther than the farthest that has one. `progress`: the exponent is d less the distance before the step, plus 1, so
    that 1 stands for a step on a shortest way.

    Source: GraphGPO, recipe/GraphGPO/core_graph.py of verl-agent, which multiplies by its reward of 10.
    """

    gamma: float
    progress: bool = False

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        graph = build_state_graph(batch)
        here, after = bound_distances(measure_goal_distances(graph), graph, batch.keys["group"])
        exponent = after - here + 1.0 if self.progress else after
        return batch.with_columns(nearness=np.power(self.gamma, exponent)), trackers


def bound_distances(distance: Floats, graph: StateGraph, group: Ints) -> tuple[Floats, Floats]:
    """[nodes] distances -> [S] before and [S] after each step, all finite: a node without a way to the goal is one step
    farther than the farthest state of its group that has one."""
    here, after = distance[graph.before], distance[graph.after]
    farthest = np.zeros(graph.groups)
    np.maximum.at(farthest, group, np.where(np.isfinite(here), here, 0.0))
    beyond = farthest[group] + 1.0
    return np.where(np.isfinite(here), here, beyond), np.where(np.isfinite(after), after, beyond)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateValues:
    """Columns ``value_after`` and ``gain``: mean discounted score over the visits of the state that a step led to, and
    that less the mean over the visits of the state that it was taken in.

    A visit k steps before the end of its episode counts gamma^k times the score, with k = 1 for the last step. After
    the last step the value is the score itself.

    Source: G2PO, g2po/core_g2po.py, whose score is 10 or 0.
    """

    gamma: float
    signal: str = "reward"

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        signal = np.nan_to_num(batch.column(self.signal))
        graph = build_state_graph(batch)
        value = average_by_state(graph, self.gamma * returns_to_go(signal, batch.starts, self.gamma))
        here, after = value[graph.before], np.asarray(batch.per_step(batch.totals(signal)), float)
        after[~graph.ends] = value[graph.after[~graph.ends]]
        gain = after - here
        gain[np.abs(gain) <= ROUNDING_SHARE * np.abs(after)] = 0.0
        return batch.with_columns(value_after=after, gain=gain), trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanReturns:
    """Column ``value``: mean discounted return over the visits of the step's state, in place of a critic's prediction.

    Source: GAGPO, arXiv:2605.13217.
    """

    gamma: float
    signal: str = "reward"

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        signal = np.nan_to_num(batch.column(self.signal))
        graph = build_state_graph(batch)
        value = average_by_state(graph, returns_to_go(signal, batch.starts, self.gamma))
        return batch.with_columns(value=value[graph.before]), trackers
