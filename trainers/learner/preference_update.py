"""An update on pairs of steps (DPO), with the gradient of the loss on all pairs at once.

The gradient of -log sigmoid(beta (c - r)) is a weighted sum of gradients of log-probabilities, whose weights depend on
the current ones alone. So these are computed first, and the update is one of the weighted likelihood: rows of a pair
may be in different micro-batches and processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gymcp.trainers.learner.learner import Learner, UpdateStats
from gymcp.trainers.learner.token_rows import Example, Row
from gymcp.trainers.settings.arrays import Floats
from gymcp.trainers.settings.loss import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """The tokens of a step's action in the rows of an update."""

    row: int
    """Place of the row."""
    start: int
    end: int


TokenPair = tuple[StepTokens, StepTokens]
"""The better step, and the worse one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairStats:
    """Statistics of the pairs before an update."""

    pairs: int
    loss: float
    """Mean over the pairs; 0 without a pair."""
    accuracy: float
    """Share of the pairs whose better step has gained more over the reference than the worse one; 0 without a pair."""


def find_step_tokens(examples: Sequence[Example]) -> dict[tuple[int, int], StepTokens]:
    """(number of the episode, index of its step) -> its tokens; steps without tokens are left out."""
    return {
        (example.episode or 0, index): StepTokens(row=b, start=start, end=end)
        for b, example in enumerate(examples)
        for index, start, end in example.row.steps
        if end > start
    }


def update_on_pairs(
    learner: Learner, examples: Sequence[Example], pairs: Sequence[TokenPair], groups: Sequence[int], *, beta: float
) -> tuple[UpdateStats, PairStats]:
    """Take one step on the loss of the pairs, beside the reference policy that the learner has.

    The advantages of the examples are not read. Without a pair no weight changes. Raises ConfigError without a
    reference, FloatingPointError as `Learner.update`.
    """
    margins = measure_margins(learner, [each.row for each in examples], pairs, groups, beta=beta)
    weighed = weigh_pairs(examples, pairs, margins, beta=beta)
    stats = learner.update(weighed, Loss(kind="likelihood"), groups=groups)
    loss = float(np.logaddexp(0.0, -margins).mean()) if pairs else 0.0
    accuracy = float((margins > 0).mean()) if pairs else 0.0
    return replace(stats, loss=loss), PairStats(pairs=len(pairs), loss=loss, accuracy=accuracy)


def measure_margins(
    learner: Learner, rows: Sequence[Row], pairs: Sequence[TokenPair], groups: Sequence[int], *, beta: float
) -> Floats:
    """[P]: beta times what the better step has gained over the reference in log-probability, less that of the worse."""
    paired = sorted({step.row for pair in pairs for step in pair})
    if not paired:
        return np.zeros(0)
    chosen, of_rows = [rows[b] for b in paired], [groups[b] for b in paired]
    current, reference = learner.logprobs(chosen, of_rows), learner.reference_logprobs(chosen, of_rows)
    change = {b: now - before for b, now, before in zip(paired, current, reference, strict=True)}
    gains = np.array([[change[step.row][step.start : step.end].sum() for step in pair] for pair in pairs])
    return np.asarray(beta * (gains[:, 0] - gains[:, 1]), float)


def weigh_pairs(
    examples: Sequence[Example], pairs: Sequence[TokenPair], margins: Floats, *, beta: float
) -> list[Example]:
    """The examples whose weighted likelihood, averaged over tokens, has the gradient of the loss on the pairs."""
    weights = beta / (1.0 + np.exp(np.clip(margins, -500, 500))) / max(len(pairs), 1)
    sums = [np.zeros(len(example.row.token_ids)) for example in examples]
    counted = [np.zeros(len(example.row.token_ids), bool) for example in examples]
    for pair, weight in zip(pairs, weights.tolist(), strict=True):
        for step, sign in zip(pair, (1.0, -1.0), strict=True):
            sums[step.row][step.start : step.end] += sign * weight
            counted[step.row][step.start : step.end] = True
    tokens = sum(int(flags.sum()) for flags in counted)  # the loss is averaged over them
    return [
        replace(example, advantages=(own * tokens,), counted=(flags,))
        for example, own, flags in zip(examples, sums, counted, strict=True)
    ]
