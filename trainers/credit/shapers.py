"""Shapers: reward columns from recorded trajectories. They never change the recorded score: shaping is not scoring."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np

from gymcp.errors import ConfigError
from gymcp.evaluators.graders.matching import server_calls
from gymcp.trainers.credit.call_matching import Assignment, hard_rewards, similarities, soft_rewards, token_f1
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints
from gymcp.types import Task, Trajectory

OtcForm = Literal["grpo", "ppo"]
CALLS = "calls"
"""Name of the column with the number of calls of each step."""
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trackers:
    """Values that shapers carry from batch to batch; saved with every checkpoint."""

    fewest_calls: Mapping[str, int] = field(default_factory=dict)
    """Fewest tool calls with which each task has ever been solved."""
    least_cost: Mapping[str, float] = field(default_factory=dict)
    """Least cost at which each task has ever been solved, for each kind of cost: the key is ``column/task``."""
    success_counts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Discounted numbers (a, b) of successes and failures of each task."""
    turn_entropy: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Sum of step entropies (nats) and number of steps so far, for each index of a step."""
    batches: int = 0
    """Batches that `EntropySmoothing` has seen."""
    transitions: Mapping[str, str | Sequence[Sequence[str]]] = field(default_factory=dict)
    """Transitions that were ever recorded for each task, as `graph/transitions.py` writes them."""
    earlier_scores: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Scores of each task's episodes in the last batch that had any."""


def _ends(batch: StepBatch) -> Ints:
    return batch.starts[1:] - 1


def _place_at_end(batch: StepBatch, values: Floats) -> Floats:
    """[N] -> [S]: the value on the last step of each trajectory, 0 elsewhere."""
    column = np.zeros(int(batch.starts[-1]))
    column[_ends(batch)] = values
    return column


def is_solved(batch: StepBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[N]: true for a trajectory with the full score."""
    return batch.totals(batch.column("reward")) >= 1.0 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidPenalty:
    """Column ``invalid``: penalty of a step without a usable action, for `AdvantageTerm.penalty`."""

    coefficient: float = 0.1

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        return batch.with_columns(invalid=self.coefficient * (1.0 - batch.column("valid"))), trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class OtcReward:
    """Column ``otc``: the score times the economy of calls, measured by the fewest calls that ever solved the task.

    With m calls made and n the fewest, the factor is 1 for m = n = 0, cos(m pi / (2 m + c)) for n = 0, else sin(pi m /
    (m + n)); 0 as long as no trajectory has solved the task. ``form="ppo"`` knows no n: cos(m pi / (2 m + c)). With
    another `cost` than calls, m and n are that cost of an episode (`COST_COLUMNS`), which the paper does not have.

    Source: arXiv:2504.14870; alpha and c are not given there.
    """

    alpha: float = 1.0
    c: float = 1.0
    form: OtcForm = "grpo"
    cost: str = CALLS

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        made, score = batch.totals(batch.column(self.cost)), batch.totals(batch.column("reward"))
        least, later = self._remember(batch, made, trackers)
        factors = [self._factor(m, least.get(task)) for m, task in zip(made.tolist(), batch.tasks, strict=True)]
        return batch.with_columns(otc=_place_at_end(batch, self.alpha * np.array(factors) * score)), later

    def _remember(self, batch: StepBatch, made: Floats, trackers: Trackers) -> tuple[Mapping[str, float], Trackers]:
        """The least cost of each task so far, and the trackers that know it."""
        solved = is_solved(batch).tolist()
        if self.cost == CALLS:
            fewest = update_least(trackers.fewest_calls, batch.tasks, made.astype(int).tolist(), solved)
            return fewest, replace(trackers, fewest_calls=fewest)
        keys = [f"{self.cost}/{task}" for task in batch.tasks]
        least = update_least(trackers.least_cost, keys, made.tolist(), solved)
        of_tasks = {task: least[key] for task, key in zip(batch.tasks, keys, strict=True) if key in least}
        return of_tasks, replace(trackers, least_cost=least)

    def _factor(self, cost: float, least: float | None) -> float:
        if self.form == "ppo":
            return tool_productivity(cost, 0, c=self.c)
        return 0.0 if least is None else tool_productivity(cost, least, c=self.c)


def update_least(
    least: Mapping[str, Number], keys: Sequence[str], costs: Sequence[Number], solved: Sequence[bool]
) -> dict[str, Number]:
    """The least cost of each task so far, with those of the episodes that solved it."""
    after = dict(least)
    for key, cost, right in zip(keys, costs, solved, strict=True):
        if right:
            after[key] = min(cost, after.get(key, cost))
    return after


def tool_productivity(calls: float, fewest: float, *, c: float = 1.0) -> float:
    """Factor r_tool of OTC in [0, 1] for that many calls, or that cost, if `fewest` are enough."""
    if fewest == 0:
        return 1.0 if calls == 0 else math.cos(calls * math.pi / (2 * calls + c))
    return math.sin(math.pi * calls / (calls + fewest))


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyAndEconomy:
    """Columns ``accuracy`` and ``economy`` of HDPO.

    accuracy: `answer` times the score, plus `form` if every action was usable. economy: 1 / (T + 1) for a solved
    trajectory with T steps that call tools; NaN for an unsolved one, so that only solved ones are compared.

    Source: Metis, verl_tool/workers/reward_manager/metis.py.
    """

    answer: float = 0.9
    form: float = 0.1

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        score, wrong = batch.totals(batch.column("reward")), batch.totals(1.0 - batch.column("valid"))
        turns = batch.totals((batch.column("calls") > 0).astype(float))
        economy = np.where(is_solved(batch), 1.0 / (turns + 1.0), np.nan)
        accuracy = self.answer * score + self.form * (wrong == 0)
        per_step = np.asarray(batch.per_step(economy), float)
        return batch.with_columns(accuracy=_place_at_end(batch, accuracy), economy=per_step), trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCounts:
    """Key ``calls``: number of tool calls of the whole trajectory (the strata of SAN)."""

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        made = batch.totals(batch.column("calls")).astype(np.int64)
        return batch.with_keys(calls=np.asarray(batch.per_step(made), np.int64)), trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Columns named after the components of the recorded scores (GDPO)."""

    names: tuple[str, ...]
    prefix: str = ""
    """Beginning of the columns' names."""
    required: bool = True
    """Raise ConfigError for a record that lacks a component; False: its value is 0 there."""

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        columns: dict[str, Floats] = {}
        for name in self.names:
            if self.prefix + name in batch.columns:
                continue
            values = [self._value(record, name) for record in batch.sources]
            if not values:
                raise ConfigError(f"credit: no reward component '{name}' in the batch")
            columns[self.prefix + name] = _place_at_end(batch, np.array(values))
        return batch.with_columns(**columns), trackers

    def _value(self, record: Trajectory, name: str) -> float:
        if name not in record.components:
            if not self.required:
                return 0.0
            have = ", ".join(sorted(record.components)) or "none"
            raise ConfigError(f"credit: {record.env}/{record.task}: no reward component '{name}'; have {have}")
        return record.components[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedCalls:
    """Column ``matched``: similarity between a step's calls and the gold calls, averaged over the calls.

    A last step without calls is compared with the gold's final text instead, by words (F1). Raises ConfigError for
    tasks without gold.

    Source: MatchTIR; `assignment` = "greedy" and `unmatched` = 0 in its run script.
    """

    assignment: Assignment = "optimal"
    soft: bool = False
    unmatched: float = 0.0

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        if not batch.sources:
            raise ConfigError("matchtir: needs recorded trajectories, and the batch has bare columns")
        rewards = [reward for record in batch.sources for reward in self._rewards(record, self._task(batch, record))]
        return batch.with_columns(matched=np.array(rewards, float)), trackers

    def _task(self, batch: StepBatch, record: Trajectory) -> Task:
        task = batch.gold.get(record.task)
        if task is None or not any(turn.calls or turn.final_text for turn in task.gold):
            raise ConfigError(f"matchtir: task '{record.task}' has no gold calls; choose a preset that needs none")
        return task

    def _rewards(self, record: Trajectory, task: Task) -> list[float]:
        made = [(t, call) for t, step in enumerate(record.steps) for call in server_calls(step)]
        table = similarities([call for _, call in made], [call for turn in task.gold for call in turn.calls])
        matched = soft_rewards(table) if self.soft else self._hard_rewards(table)
        by_step: list[list[float]] = [[] for _ in record.steps]
        for (t, _), reward in zip(made, matched, strict=True):
            by_step[t].append(reward)
        rewards = [sum(own) / len(own) if own else 0.0 for own in by_step]
        if record.steps and not record.steps[-1].action.tool_calls:
            rewards[-1] = token_f1(record.steps[-1].action.text, task.gold[-1].final_text)
        return rewards

    def _hard_rewards(self, table: Floats) -> list[float]:
        return hard_rewards(table, unmatched=self.unmatched, assignment=self.assignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongPenalty:
    """Column ``overlong``: penalty at the end of a long trajectory, from 0 at `max_tokens - buffer` tokens to -`factor`
    at `max_tokens`.

    Source: DAPO, arXiv:2503.14476.
    """

    max_tokens: int
    buffer: int
    factor: float = 1.0

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        length = batch.totals(batch.column("tokens"))
        return batch.with_columns(overlong=_place_at_end(batch, overlong_penalties(length, self))), trackers


def overlong_penalties(length: Floats, rule: OverlongPenalty) -> Floats:
    """[N] tokens -> [N] penalties, at most 0; beyond `max_tokens` they keep growing."""
    return np.minimum(-(length - (rule.max_tokens - rule.buffer)) / rule.buffer * rule.factor, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedSum:
    """Column that is the weighted sum of others, such as the score less the costs."""

    name: str
    weights: tuple[tuple[str, float], ...]

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        total = np.zeros(int(batch.starts[-1]))
        for column, weight in self.weights:
            total = total + weight * batch.column(column)
        return batch.with_columns(**{self.name: total}), trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToolUse:
    """Columns ``first_use`` and ``length``, in tokens; ``first_use`` is NaN for a trajectory that is not solved or
    calls no tool (ASPO)."""

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        tokens, calls = batch.column("tokens"), batch.column("calls")
        before = np.cumsum(tokens) - tokens
        before = before - np.repeat(before[batch.starts[:-1]], batch.lengths)
        earliest = np.minimum.reduceat(np.where(calls > 0, before, np.inf), batch.starts[:-1])
        first_token = np.where(is_solved(batch) & np.isfinite(earliest), earliest, np.nan)
        length = batch.totals(tokens)
        first_use, lengths = (np.asarray(batch.per_step(values), float) for values in (first_token, length))
        return batch.with_columns(first_use=first_use, length=lengths), trackers
