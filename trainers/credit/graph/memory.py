"""Shapers that remember earlier batches: transitions and scores of each task, in the trackers of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gymcp.trainers.credit.estimators import ROUNDING_SHARE
from gymcp.trainers.credit.graph.shapers import bound_distances
from gymcp.trainers.credit.graph.state_graph import StateGraph, build_state_graph, search_back
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints

KEY_LENGTH = 16
"""Characters of a state key that are remembered: 64 bits of its digest."""
Transitions = Mapping[str, Sequence[Sequence[str]]]
"""Transitions of each task: states before and after."""
GOAL = ""
"""State after the last step of a solved episode, as it is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedDistance:
    """Column ``nearness``: gamma^d for a step to a state that is d recorded steps from the end of a solved episode, by
    the transitions of this batch and of all before it.

    Only the distances remember: no earlier step is compared or trained on. A batch of bare columns has no state keys
    that outlive it, so nothing is remembered of it.

    Source: TIGPO, arXiv:2609.03383.
    """

    gamma: float

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        graph = build_state_graph(batch)
        names = _name_states(batch, graph)
        tasks = _tasks_of_groups(batch, graph.groups)
        before, after, nodes = _join_earlier(graph, batch.keys["group"], names, tasks, trackers.transitions)
        distance = search_back(before, after, graph.goals, nodes)[: graph.nodes]
        _, after_step = bound_distances(distance, graph, batch.keys["group"])
        shaped = batch.with_columns(nearness=np.power(self.gamma, after_step))
        return shaped, replace(trackers, transitions=_remember(graph, batch, names, trackers.transitions))


def _name_states(batch: StepBatch, graph: StateGraph) -> list[str]:
    """[states]: the beginning of each state's key; empty for a batch of bare columns."""
    if not batch.sources:
        return []
    keys = [step.state_key for record in batch.sources for step in record.steps]
    first = np.unique(graph.before, return_index=True)[1]
    return [keys[place][:KEY_LENGTH] for place in first.tolist()]


def _tasks_of_groups(batch: StepBatch, groups: int) -> list[str]:
    tasks = [""] * groups
    for group, task in zip(batch.keys["group"][batch.starts[:-1]].tolist(), batch.tasks, strict=True):
        tasks[group] = task
    return tasks


def _join_earlier(
    graph: StateGraph,
    group: Ints,
    names: Sequence[str],
    tasks: Sequence[str],
    earlier: Transitions,
) -> tuple[Ints, Ints, int]:
    """Edges from and to nodes of the graph with the earlier transitions of each group's task, and the number of nodes.

    States that only earlier batches visited are nodes after those of the graph.
    """
    owner = np.zeros(graph.states, np.int64)
    owner[graph.before] = group
    nodes = {key: node for node, key in enumerate(zip(owner.tolist(), names, strict=False))}
    added = graph.nodes - len(nodes)
    starts, ends = [], []
    for number, task in enumerate(tasks):
        for start, end in earlier.get(task, ()) if names else ():
            starts.append(nodes.setdefault((number, start), added + len(nodes)))
            goal = graph.states + number
            ends.append(goal if end == GOAL else nodes.setdefault((number, end), added + len(nodes)))
    before = np.concatenate((graph.before, np.array(starts, np.int64)))
    after = np.concatenate((graph.after, np.array(ends, np.int64)))
    return before, after, added + len(nodes)


def _remember(graph: StateGraph, batch: StepBatch, names: Sequence[str], earlier: Transitions) -> Transitions:
    """The transitions of each task with those of the batch; dead ends are left out, since no way leads on from them."""
    if not names:
        return earlier
    leads_on = graph.after < graph.states + graph.groups
    task_of_step = np.repeat(np.arange(len(batch.tasks)), batch.lengths)[leads_on]
    pairs, first = np.unique(np.stack((graph.before[leads_on], graph.after[leads_on])), axis=1, return_index=True)
    found: dict[str, set[tuple[str, str]]] = {}
    for (start, end), place in zip(pairs.T.tolist(), task_of_step[first].tolist(), strict=True):
        name = names[end] if end < graph.states else GOAL
        found.setdefault(batch.tasks[place], set()).add((names[start], name))
    for task, new in found.items():
        new.update((start, end) for start, end in earlier.get(task, ()))
    return {**earlier, **{task: [list(pair) for pair in sorted(new)] for task, new in found.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierScores:
    """Column ``contrast``: the episode's score less the mean of its group's scores and of those that the task's
    episodes had when it was last practised, divided by the deviation of both together.

    Without earlier scores it is GRPO's advantage. `scaled` = False: not divided.

    Source: TIGPO, arXiv:2609.03383.
    """

    scaled: bool = True
    epsilon: float = 1e-6
    signal: str = "reward"

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        score = batch.totals(batch.column(self.signal))
        group = batch.keys["group"][batch.starts[:-1]]
        contrast = np.zeros_like(score)
        latest: dict[str, list[float]] = {}
        order = np.argsort(group, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            task = batch.tasks[int(members[0])]
            contrast[members] = self._compare(score[members], trackers.earlier_scores.get(task, ()))
            latest.setdefault(task, []).extend(score[members].tolist())
        shaped = batch.with_columns(contrast=np.asarray(batch.per_step(contrast), float))
        return shaped, replace(trackers, earlier_scores={**trackers.earlier_scores, **latest})

    def _compare(self, scores: Floats, earlier: Sequence[float]) -> Floats:
        reference = np.concatenate((scores, np.asarray(earlier, float)))
        if len(reference) < 2:
            return np.zeros_like(scores)
        difference = scores - reference.mean()
        difference[np.abs(difference) <= ROUNDING_SHARE * np.abs(scores)] = 0.0
        return np.asarray(difference / (reference.std(ddof=1) + self.epsilon) if self.scaled else difference, float)
