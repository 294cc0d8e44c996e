"""What step-level credit has to work with in a batch: how often states meet, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gymcp.trainers.credit.estimators import AdvantageTerm, estimate_advantage
from gymcp.trainers.credit.presets import Preset, gigpo
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorStatistics:
    """Of one way to anchor steps. Shares are of steps, in [0, 1]."""

    states: int
    mean_group: float
    """Steps per state."""
    largest_group: int
    singletons: float
    """Steps in a state that no other step was taken in: they get nothing from it."""
    self_repeats: float
    """Steps in a state that the same trajectory had been in before: it is compared with itself."""
    step_share: float
    """Of |advantage| times tokens, what comes from comparing steps; the rest is the episode's."""
    follows_turn: float
    """Share of the step advantage's variance within groups that the mere index of the step explains. Near 1, it says
    little more than how late the step was."""


def anchor_statistics(batch: StepBatch, state: Ints, preset: Preset | None = None) -> AnchorStatistics:
    """[S] codes of states -> what GiGPO would have of them in this batch: with the preset's discount, weight and scale
    where it compares steps in the same state, else with GiGPO's own."""
    steps = len(state)
    sizes = np.bincount(state)
    sizes_of = sizes[state]
    visits = np.unique(np.stack((batch.keys["trajectory"], state)), axis=1).shape[1]
    anchored = batch.with_keys(state=state)
    whole, each = _gigpo_terms(preset)
    episode, step = estimate_advantage(whole, anchored), each.weight * estimate_advantage(each, anchored)
    tokens = batch.column("tokens")
    from_step, from_episode = float(np.abs(step) @ tokens), float(np.abs(episode) @ tokens)
    return AnchorStatistics(
        states=int((sizes > 0).sum()),
        mean_group=steps / int((sizes > 0).sum()),
        largest_group=int(sizes.max()),
        singletons=float((sizes_of == 1).mean()),
        self_repeats=1.0 - visits / steps,
        step_share=from_step / (from_step + from_episode) if from_step + from_episode else 0.0,
        follows_turn=correlation_ratio(step, batch.keys["group"], batch.keys["turn"]),
    )


def _gigpo_terms(preset: Preset | None) -> tuple[AdvantageTerm, AdvantageTerm]:
    """The advantage_terms of the episode and of the step."""
    for term in preset.loss_terms if preset is not None else ():
        match term.advantage_terms:
            case (
                AdvantageTerm(signal="reward") as whole,
                AdvantageTerm(signal="reward", key=("group", "state")) as each,
            ):
                return replace(whole, penalty=None), replace(each, penalty=None)
    whole, each = gigpo().loss_terms[0].advantage_terms
    return whole, each


def correlation_ratio(values: Floats, group: Ints, within: Ints) -> float:
    """[S] each -> in [0, 1]: of the variance around the means of `group`, what the means of (group, within) explain.

    The correlation ratio eta squared; 0 where nothing varies.
    """
    cell = np.unique(group * (int(within.max(initial=0)) + 1) + within, return_inverse=True)[1]
    around_group = values - _means(values, group)
    around_cell = values - _means(values, cell)
    total = float(around_group @ around_group)
    return 1.0 - float(around_cell @ around_cell) / total if total > 1e-18 else 0.0


def _means(values: Floats, code: Ints) -> Floats:
    count = np.bincount(code)
    return np.asarray((np.bincount(code, values) / np.maximum(count, 1))[code], float)
