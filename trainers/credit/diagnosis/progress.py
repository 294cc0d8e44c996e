"""Steps that made progress, by two measures that know nothing of credit: recorded transitions, and gold calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gymcp.evaluators.graders.matching import server_calls
from gymcp.trainers.credit.call_matching import similarity
from gymcp.trainers.credit.graph.state_graph import measure_distances_to_success
from gymcp.trainers.credit.shapers import is_solved
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.types import Task, Trajectory

Mask = npt.NDArray[np.bool_]
EQUAL = 1.0 - 1e-9
"""Similarity of two calls from which on they are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressComparison:
    """Progress of steps by one measure, beside the end of their episodes."""

    by: Literal["transitions", "gold"]
    steps: int
    """Steps that the measure can judge."""
    in_failed: float | None
    """Share of these steps in failed episodes that made progress, and are blamed with their episode; None: no such
    step."""
    none_in_solved: float | None
    """Share of these steps in solved episodes that made none, and are praised with their episode; None: no such
    step."""


def measure_progress(batch: StepBatch) -> tuple[ProgressComparison, ...]:
    """Progress by recorded transitions, and by gold calls if every task of the batch has some."""
    solved = np.asarray(batch.per_step(is_solved(batch)), bool)
    made, judged = _transitions(batch, solved)
    found = [_compare("transitions", made, judged, solved)]
    if batch.sources and all(_has_gold(batch, record) for record in batch.sources):
        found.append(_compare("gold", *_gold_calls(batch), solved))
    return tuple(found)


def _compare(by: Literal["transitions", "gold"], made: Mask, judged: Mask, solved: Mask) -> ProgressComparison:
    failed, won = judged & ~solved, judged & solved
    return ProgressComparison(
        by=by,
        steps=int(judged.sum()),
        in_failed=float(made[failed].mean()) if failed.any() else None,
        none_in_solved=float((~made)[won].mean()) if won.any() else None,
    )


def _transitions(batch: StepBatch, solved: Mask) -> tuple[Mask, Mask]:
    """[S]: true for a step to a state nearer to success; and for the steps of groups in which an episode succeeded."""
    distance = measure_distances_to_success(batch)
    after = np.full(len(distance), np.inf)
    after[:-1] = distance[1:]
    last = batch.starts[1:] - 1
    after[last] = np.where(solved[last], 0.0, np.inf)
    group = batch.keys["group"]
    return after < distance, np.isin(group, group[solved])


def _has_gold(batch: StepBatch, record: Trajectory) -> bool:
    task = batch.gold.get(record.task)
    return task is not None and any(turn.calls for turn in task.gold)


def _gold_calls(batch: StepBatch) -> tuple[Mask, Mask]:
    """Two masks [S]: steps with a gold call that the episode had not made yet, and steps with any call."""
    made = [each for record in batch.sources for each in find_new_gold_calls(record, batch.gold[record.task])]
    judged = [bool(step.action.tool_calls) for record in batch.sources for step in record.steps]
    return np.array(made, bool), np.array(judged, bool)


def find_new_gold_calls(record: Trajectory, task: Task) -> list[bool]:
    """[T]: true for a step with a gold call that the episode had not made yet."""
    left = [call for turn in task.gold for call in turn.calls]
    made = []
    for step in record.steps:
        found = False
        for call in server_calls(step):
            match = next((n for n, gold in enumerate(left) if similarity(call, gold) >= EQUAL), None)
            if match is not None:
                del left[match]
                found = True
        made.append(found)
    return made
