"""Updates turn by turn: the last steps of all episodes first, then those before them, up to the first (SeeUPO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gymcp.trainers.learner.learner import Learner, UpdateStats
from gymcp.trainers.learner.token_rows import Example
from gymcp.trainers.settings.arrays import Floats
from gymcp.trainers.settings.loss import Loss
from gymcp.trainers.settings.turns import TurnByTurn


def update_turn_by_turn(
    learner: Learner,
    examples: Sequence[Example],
    loss: Loss,
    rule: TurnByTurn,
    *,
    weights: Sequence[float],
    groups: Sequence[int],
    old: Sequence[Floats] | None = None,
) -> list[UpdateStats]:
    """One update for each index of a step, the largest first; after each, a forward pass over all rows.

    Without `old`, each update compares with the weights just before it. Raises what `Learner.update` raises.
    """
    rows = [example.row for example in examples]
    episodes = [-1 - b if each.episode is None else each.episode for b, each in enumerate(examples)]
    factors = dict.fromkeys(episodes, 1.0)
    before = learner.logprobs(rows, groups)
    updates = []
    for turn in sorted({step for row in rows for step, _, _ in row.spans}, reverse=True):
        chosen = [b for b, row in enumerate(rows) if any(step == turn for step, _, _ in row.spans)]
        updates.append(
            learner.update(
                [restrict_to_turn(examples[b], turn, factors[episodes[b]]) for b in chosen],
                loss,
                weights=weights,
                groups=[groups[b] for b in chosen],
                old=None if old is None else [old[b] for b in chosen],
            )
        )
        after = learner.logprobs(rows, groups)
        for episode in {episodes[b] for b in chosen}:
            own = [b for b in chosen if episodes[b] == episode]
            change = np.concatenate([(after[b] - before[b])[mask_turn(examples[b], turn)] for b in own])
            factors[episode] = next_factor(factors[episode], change, rule.clip)
        before = after
    return updates


def mask_turn(example: Example, turn: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[L]: true for the tokens drawn for the step of this index."""
    mask = np.zeros(len(example.row.token_ids), bool)
    for step, start, end in example.row.spans:
        if step == turn:
            mask[start:end] = True
    return mask


def restrict_to_turn(example: Example, turn: int, factor: float) -> Example:
    """The example in which only the tokens of this step count, with their advantages times the factor."""
    mask = mask_turn(example, turn)
    return replace(
        example,
        advantages=tuple(np.where(mask, factor * advantage, 0.0) for advantage in example.advantages),
        counted=tuple(counted & mask for counted in example.counted),
    )


def next_factor(factor: float, change: Floats, clip: float) -> float:
    """The factor of earlier steps after an update has changed the log-probabilities of a step's tokens by [K].

    The geometric mean of the tokens' ratios is clipped, and so is its product with the factor so far.
    """
    if not len(change):
        return factor
    own = np.clip(np.exp(np.clip(change.mean(), -20.0, 20.0)), 1 - clip, 1 + clip)
    return float(np.clip(factor * own, 1 - clip, 1 + clip))
