"""A chain of places played by a policy of known probabilities, whose gradients are known exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gymcp.trainers.credit.diagnosis.gradient_factors import gradient_factors
from gymcp.trainers.credit.presets import Preset
from gymcp.trainers.credit.step_batch import StepBatch, batch_of_columns
from gymcp.trainers.settings.arrays import Floats, Ints

PLACES, STEPS = 6, 14
POLICY = np.array([0.55, 0.2, 0.2, 0.05])
"""Probabilities, in every place, of: a place forward, nothing, a place back, and a trap that only the score tells."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    batch: StepBatch
    places: Ints
    """[S]: place of each step, from `PLACES` on in the trap."""
    actions: Ints
    """[S]."""


def play(groups: int, episodes: int, seed: int, *, luck: bool = False) -> Played:
    """`groups` times `episodes` episodes. With `luck`, the score is a coin, whatever was done."""
    rng = np.random.default_rng(seed)
    total = groups * episodes
    at, trapped, over = np.zeros(total, int), np.zeros(total, bool), np.zeros(total, bool)
    places: list[list[int]] = [[] for _ in range(total)]
    actions: list[list[int]] = [[] for _ in range(total)]
    for _ in range(STEPS):
        drawn = rng.choice(len(POLICY), size=total, p=POLICY)
        for n in np.flatnonzero(~over).tolist():
            places[n].append(int(at[n] + PLACES * trapped[n]))
            actions[n].append(int(drawn[n]))
        at = np.where(over, at, np.maximum(at + (drawn == 0) - (drawn == 2), 0))
        trapped |= ~over & (drawn == 3)
        over |= at >= PLACES
    won = rng.random(total) < 0.4 if luck else over & ~trapped
    rewards = [[0.0] * (len(own) - 1) + [float(score)] for own, score in zip(places, won, strict=True)]
    return Played(
        batch=batch_of_columns(rewards, np.repeat(np.arange(groups), episodes).tolist(), places),
        places=np.concatenate([np.array(own) for own in places]),
        actions=np.concatenate([np.array(own) for own in actions]),
    )


def exact_gradient() -> Floats:
    """[places, actions]: gradient of the probability of success, by dynamic programming."""
    values, reached = np.zeros((STEPS + 1, 2 * PLACES)), np.zeros((STEPS + 1, 2 * PLACES))
    action_values = np.zeros((STEPS, 2 * PLACES, len(POLICY)))
    for t in reversed(range(STEPS)):
        for place in range(2 * PLACES):
            for action in range(len(POLICY)):
                after = follow(place, action)
                won = 0.0 if place >= PLACES or action == 3 else 1.0
                action_values[t, place, action] = won if after is None else values[t + 1, after]
            values[t, place] = POLICY @ action_values[t, place]
    gradient = np.zeros((2 * PLACES, len(POLICY)))
    reached[0, 0] = 1.0
    for t in range(STEPS):
        gradient += reached[t, :, None] * POLICY * (action_values[t] - values[t, :, None])
        for place in range(2 * PLACES):
            for action, probability in enumerate(POLICY):
                if (after := follow(place, action)) is not None:
                    reached[t + 1, after] += reached[t, place] * probability
    return gradient


def follow(place: int, action: int) -> int | None:
    """Place after the action; None: the end."""
    at, trapped = place % PLACES, place >= PLACES or action == 3
    after = max(at + (action == 0) - (action == 2), 0)
    return None if after == PLACES else after + PLACES * trapped


def true_ratios(played: Played, presets: Mapping[str, Preset]) -> dict[str, float]:
    """Signal-to-noise ratio of each preset over that of grpo, from the true policy and the true gradient."""
    truth, group = exact_gradient(), played.batch.keys["group"]
    groups, found = int(group.max()) + 1, {}
    for name, preset in presets.items():
        factors = gradient_factors(played.batch, preset)
        of_groups = np.zeros((groups, *truth.shape))
        np.add.at(of_groups, (group, played.places, played.actions), factors)
        total = np.zeros((groups, len(truth)))
        np.add.at(total, (group, played.places), factors)
        of_groups -= total[:, :, None] * POLICY
        along, size = float((of_groups.mean(0) * truth).sum()), float(np.square(of_groups).sum((1, 2)).mean())
        cosine = along**2 / (size * float(np.square(truth).sum()))
        found[name] = cosine / (1 - cosine)
    return {name: each / found["grpo"] for name, each in found.items()}
