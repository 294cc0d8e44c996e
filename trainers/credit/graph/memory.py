"""Shapers that remember earlier batches: transitions and scores of each task, in the trackers of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from gymcp.trainers.credit.estimators import ROUNDING_SHARE
from gymcp.trainers.credit.graph.shapers import bound_distances
from gymcp.trainers.credit.graph.state_graph import (
    StateGraph,
    build_state_graph,
    measure_goal_distances,
    search_back,
)
from gymcp.trainers.credit.graph.transitions import (
    GOAL,
    TRANSITION_LENGTH,
    Codes,
    Transitions,
    decode_transitions,
    encode_states,
    encode_transitions,
)
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints

FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd number by which codes are mixed: two states, or transitions, are taken for one with a chance of 2^-64 a pair."""


def _mix(numbers: Ints) -> Codes:
    """Well spread codes of groups or tasks, so that equal states of two of them have different codes."""
    return (numbers.astype(np.uint64) + np.uint64(1)) * FACTOR


def _find_first(numbers: Codes) -> Ints:
    """[n] -> [n]: place of the first number that equals each, by hashing: sorting would take several times as long."""
    first = np.zeros(len(numbers), np.int64)
    rest = np.arange(len(numbers))
    bits = max(2 * len(numbers), 2).bit_length()
    slots = np.empty(1 << bits, np.int64)
    while len(rest):  # each round settles the numbers whose slot has one of their own, most of those that are left
        slot = numbers[rest] >> np.uint64(64 - bits)
        slots[slot[::-1]] = rest[::-1]  # the first of a slot's numbers is written last, and stays
        found = slots[slot]
        is_settled = numbers[found] == numbers[rest]
        first[rest[is_settled]] = found[is_settled]
        rest = rest[~is_settled]
        numbers = numbers * FACTOR  # odd, so different numbers stay different
    return first


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
        if not batch.sources:
            _, after_step = bound_distances(measure_goal_distances(graph), graph, batch.keys["group"])
            return batch.with_columns(nearness=np.power(self.gamma, after_step)), trackers
        codes = encode_states([step.state_key for record in batch.sources for step in record.steps])
        states = np.zeros(graph.states, np.uint64)
        states[graph.before] = codes
        before, after, nodes = _join_earlier(graph, batch, states, trackers.transitions)
        distance = search_back(before, after, graph.goals, nodes)[: graph.nodes]
        _, after_step = bound_distances(distance, graph, batch.keys["group"])
        shaped = batch.with_columns(nearness=np.power(self.gamma, after_step))
        remembered = _remember(graph, batch, states, trackers.transitions)
        return shaped, replace(trackers, transitions={**trackers.transitions, **remembered})


def _join_earlier(graph: StateGraph, batch: StepBatch, states: Codes, earlier: Transitions) -> tuple[Ints, Ints, int]:
    """Edges from and to nodes of the graph with the earlier transitions of each group's task, and the number of nodes.

    States that only earlier batches visited are nodes after those of the graph.
    """
    group = batch.keys["group"]
    tasks = [""] * graph.groups
    for number, task in zip(group[batch.starts[:-1]].tolist(), batch.tasks, strict=True):
        tasks[number] = task
    known, of_group = decode_transitions([earlier.get(task, "") for task in tasks])
    owner = np.zeros(graph.states, np.int64)
    owner[graph.before] = group
    named = np.concatenate((states, known[:, 0], known[:, 1])) ^ _mix(np.concatenate((owner, of_group, of_group)))
    first = _find_first(named)
    further = np.cumsum((first == np.arange(len(first))) & (first >= graph.states))
    node = np.where(first < graph.states, first, graph.nodes + further[first] - 1)
    starts, ends = np.split(node[graph.states :], 2)
    ends = np.where(known[:, 1] == GOAL, graph.states + of_group, ends)
    edges = np.concatenate((graph.before, starts)), np.concatenate((graph.after, ends))
    return *edges, graph.nodes + int(further.max(initial=0))


def _remember(graph: StateGraph, batch: StepBatch, states: Codes, earlier: Transitions) -> Transitions:
    """The transitions of the batch's tasks, earlier ones first; dead ends are left out, since no way leads on from
    them."""
    leads_on = graph.after < graph.states + graph.groups
    before, after = graph.before[leads_on], graph.after[leads_on]
    to_goal = after >= graph.states
    new = np.stack((states[before], np.where(to_goal, GOAL, states[np.where(to_goal, 0, after)])), axis=1)
    numbers = {task: number for number, task in enumerate(dict.fromkeys(batch.tasks))}
    of_new = np.repeat([numbers[task] for task in batch.tasks], batch.lengths)[leads_on]
    known, of_known = decode_transitions([earlier.get(task, "") for task in numbers])
    pairs, of_pairs = np.concatenate((known, new)), np.concatenate((of_known, of_new))
    first = _find_first((pairs[:, 0] * FACTOR + pairs[:, 1]) ^ _mix(of_pairs))
    kept = np.flatnonzero(first == np.arange(len(first)))
    kept = kept[np.argsort(of_pairs[kept], kind="stable")]
    texts, ends = encode_transitions(pairs[kept]), np.cumsum(np.bincount(of_pairs[kept], minlength=len(numbers)))
    cuts = [0, *(ends * TRANSITION_LENGTH).tolist()]
    return {task: texts[start:end] for task, start, end in zip(numbers, cuts, cuts[1:], strict=False) if end > start}


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
        order = np.argsort(group, kind="stable")
        cuts = [0, *(np.flatnonzero(np.diff(group[order])) + 1).tolist(), len(order)]
        earlier: list[Sequence[float]] = []
        latest: dict[str, list[float]] = {}
        scores = score[order].tolist()
        for start, end in pairwise(cuts):
            task = batch.tasks[int(order[start])]
            earlier.append(trackers.earlier_scores.get(task, ()))
            latest.setdefault(task, []).extend(scores[start:end])
        contrast = np.empty_like(score)
        contrast[order] = self._compare(score[order], np.diff(cuts), earlier)
        shaped = batch.with_columns(contrast=np.asarray(batch.per_step(contrast), float))
        return shaped, replace(trackers, earlier_scores={**trackers.earlier_scores, **latest})

    def _compare(self, scores: Floats, sizes: Ints, earlier: Sequence[Sequence[float]]) -> Floats:
        """[n] scores of groups of these sizes, one group after the other, and earlier scores of each -> [n]."""
        group = np.repeat(np.arange(len(sizes)), sizes)
        owner = np.concatenate((group, np.repeat(np.arange(len(sizes)), [len(each) for each in earlier])))
        reference = np.concatenate((scores, np.fromiter(chain.from_iterable(earlier), float)))
        count = np.bincount(owner, minlength=len(sizes))
        mean = np.bincount(owner, reference, len(sizes)) / count
        difference = scores - mean[group]
        difference[np.abs(difference) <= ROUNDING_SHARE * np.abs(scores)] = 0.0
        difference[count[group] < 2] = 0.0
        if not self.scaled:
            return difference
        squares = np.bincount(owner, (reference - mean[owner]) ** 2, len(sizes))
        deviation = np.sqrt(squares / np.maximum(count - 1, 1))
        return np.asarray(difference / (deviation[group] + self.epsilon), float)
