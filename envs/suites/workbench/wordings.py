"""Wordings of requests: bodies in frames. Some frames are held out for tests."""

from __future__ import annotations

from collections.abc import Mapping

FRAMES = (
    "Please {}.",
    "Could you do this for me: {}.",
    "Hi! I need some help: {}.",
    "Next on the list: {}.",
    "One more thing before the weekend: {}.",
    "Here is what I need: {}. Thanks!",
    "When you have a minute, {}.",
    "A request from the front office: {}.",
    "Quick one: {}.",
    "Would you take care of this? Namely: {}.",
    "I promised to have this done today: {}.",
    "Morning! First thing today: {}.",
    "I am on the road and cannot do it myself: {}.",
    "Sorry to bother you, but {}.",
    "The boss wants this done: {}.",
    "Before I forget, {}.",
)
HELD_OUT_FRAMES = FRAMES[-6:]
"""Frames that no training task has."""
HEAD = (
    "It is Friday, 2026-02-27. The shared drive is {root}, the repository of the git tools is {repo}. Change nothing"
    " that you were not asked to change; what a request leaves open stays as the tools have it."
)


def wordings(bodies: tuple[str, ...], *, held_out: bool) -> list[str]:
    """Templates of a request, with the family's slots open."""
    frames = HELD_OUT_FRAMES if held_out else [frame for frame in FRAMES if frame not in HELD_OUT_FRAMES]
    return [frame.format(body) for frame in frames for body in bodies]


def fill_template(template: str, slots: Mapping[str, object]) -> str:
    """The request, without the doubled stop after a slot's value that ends with a stop."""
    return template.format(**slots).replace("..", ".").replace(".,", ",")
