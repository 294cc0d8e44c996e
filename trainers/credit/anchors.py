"""Anchors from records: the keys that make two steps comparable."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Literal, get_args

from gymcp.envs.anchors import StateAnchor, anchor_parts, extend_history
from gymcp.trainers.credit.step_batch import codes
from gymcp.trainers.settings.arrays import Ints
from gymcp.types import Trajectory

Anchor = Literal["recorded", StateAnchor, "turn"]
"""Rule that makes the key of a step. recorded: the environment's own state key. turn: the index of the step, whatever
the state. The others are those of environments."""
ANCHORS: tuple[Anchor, ...] = get_args(Anchor)


def anchor_codes(trajectories: Sequence[Trajectory], anchor: Anchor) -> Ints:
    """[N] records -> [S]: equal numbers for steps of one group that have the same anchor."""
    return codes(key for record in trajectories for key in _keys(record, anchor))


def _keys(record: Trajectory, anchor: Anchor) -> Iterator[Hashable]:
    world_key, history = record.initial_key, ""
    for index, step in enumerate(record.steps):
        if anchor == "world+history":
            history = extend_history(history, step.observation)
        match anchor:
            case "recorded":
                yield record.group, step.state_key
            case "turn":
                yield record.group, index
            case _:
                yield record.group, *anchor_parts(anchor, step.turn, world_key, step.observation, history)
        world_key = step.world_key
