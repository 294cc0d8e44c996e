"""The gold answer's log-probability before and after every step, and the information that a step has gained (IGPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.signals.signal import Continuation, Need, SignalColumns, SignalCost, SignalModel
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints
from gymcp.types import Action, Task

GainForm = Literal["log_prob", "prob"]


@dataclass(frozen=True, slots=True)
class GoldLogprob:
    """Columns ``gold_logprob`` and ``gold_logprob_after``: mean log-probability (nats) of the gold answer's tokens
    before the step, and before the next step of the same user turn (NaN if there is none).

    The gold answer is the final text of the user turn, or if it has none, its last gold call.

    Source: arXiv:2510.14967; GuoqingWang1/IGPO, scrl/llm_agent/generation.py.
    """

    name: ClassVar[str] = "gold_logprob"
    describes: ClassVar[str] = "mean log-probability of the gold answer's tokens before the step, under the weights"
    needs: ClassVar[frozenset[Need]] = frozenset({"model", "gold"})
    cost: ClassVar[SignalCost] = SignalCost(per_step=1)

    def compute(self, batch: StepBatch, model: SignalModel | None) -> SignalColumns:
        assert model is not None
        asked: list[Continuation] = []
        user_turns: list[int] = []
        for n, record in enumerate(batch.sources):
            task = batch.gold.get(record.task)
            for step in record.steps:
                answer = find_gold_answer(task, step.turn, record.task)
                if step.sampled is None:
                    raise ConfigError(f"{self.name}: a step of {record.env}/{record.task} has no tokens")
                ids = model.encode_answer(answer, step.observation.tools)
                asked.append(Continuation(context=step.sampled.prompt_ids, ids=ids, group=n))
                user_turns.append(step.turn)
        before = np.array([float(of_tokens.mean()) for of_tokens in model.logprobs(asked)])
        after = value_of_next(before, batch, np.array(user_turns))
        return SignalColumns(steps={self.name: before, f"{self.name}_after": after})


def check_gold_answers(task: Task) -> None:
    """Raise ConfigError for a task that has a user turn without a gold answer."""
    for turn in range(len(task.prompts)):
        find_gold_answer(task, turn, task.id)


def find_gold_answer(task: Task | None, turn: int, name: str) -> Action:
    """The action that ends this user turn in the gold of a task: its final text, else its last call.

    Raises ConfigError for a task without either.
    """
    gold = task.gold[turn] if task is not None and turn < len(task.gold) else None
    if gold is None or not (gold.final_text or gold.calls):
        raise ConfigError(f"gold_logprob: task '{name}' has no gold for user turn {turn + 1}; choose another preset")
    return Action(text=gold.final_text) if gold.final_text else Action(tool_calls=gold.calls[-1:])


def value_of_next(values: Floats, batch: StepBatch, user_turns: Ints) -> Floats:
    """[S] values, [S] user turns -> [S]: the value of the next step, NaN for the last one of a user turn."""
    after = np.full(len(values), np.nan)
    after[:-1] = np.where(user_turns[1:] == user_turns[:-1], values[1:], np.nan)
    after[batch.starts[1:] - 1] = np.nan
    return after


def information_gain(before: Floats, after: Floats, form: GainForm = "log_prob") -> Floats:
    """[S], [S] mean log-probabilities -> [S]: their difference, or that of the geometric mean probabilities."""
    return after - before if form == "log_prob" else np.exp(after) - np.exp(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class InformationGain:
    """Columns ``gain``: what the step has added to the log-probability of the gold answer (NaN for a step that ends a
    user turn); ``outcome``: the score on the last step (NaN on the others); ``gain_or_outcome``: both in one.

    Source: arXiv:2510.14967. ``form="prob"``, of probabilities, is in the authors' first code.
    """

    form: GainForm = "log_prob"

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        before, after = batch.column("gold_logprob"), batch.column("gold_logprob_after")
        gain = information_gain(before, after, self.form)
        last = batch.starts[1:] - 1
        gain[last] = np.nan
        outcome = np.full(len(gain), np.nan)
        outcome[last] = batch.totals(batch.column("reward"))
        joint = np.where(np.isnan(outcome), gain, outcome)
        return batch.with_columns(gain=gain, outcome=outcome, gain_or_outcome=joint), trackers
