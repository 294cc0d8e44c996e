"""Anchors from records: the keys that make two steps comparable."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Literal, get_args

from gymcp.trainers.credit.step_batch import codes
from gymcp.trainers.settings.arrays import Ints
from gymcp.types import Message, Trajectory

Anchor = Literal["recorded", "world", "world+observation", "world+history", "turn"]
"""Rule that makes the key of a step. recorded: the environment's own state key. turn: the index of the step, whatever
the state. The others combine the world's state with the last observation or with all observations so far."""
ANCHORS: tuple[Anchor, ...] = get_args(Anchor)


def anchor_codes(trajectories: Sequence[Trajectory], anchor: Anchor) -> Ints:
    """[N] records -> [S]: equal numbers for steps of one group that have the same anchor."""
    return codes(key for record in trajectories for key in _keys(record, anchor))


def _keys(record: Trajectory, anchor: Anchor) -> Iterator[Hashable]:
    world, history = record.initial_key, 0
    for index, step in enumerate(record.steps):
        messages = tuple(_role_and_text(message) for message in step.observation.messages)
        history = hash((history, messages)) if anchor == "world+history" else 0
        match anchor:
            case "recorded":
                yield record.group, step.state_key
            case "turn":
                yield record.group, index
            case "world":
                yield record.group, step.turn, world
            case "world+observation":
                yield record.group, step.turn, world, messages
            case "world+history":
                yield record.group, step.turn, world, history
        world = step.world_key


def _role_and_text(message: Message) -> tuple[str, str]:
    return message.role, message.content
