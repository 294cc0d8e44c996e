"""The hidden tables of a house: what each tool does to each parcel. Standard library only; the file enters the sandbox.

The tables follow from the number of the house alone. No answer of a server tells anything about them: they are learnt
by practice only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

TOOLS = ("wash", "press", "fold", "weigh", "seal", "label", "dye", "send")
PARCELS = (
    "hat", "lamp", "coat", "vase", "book", "drum", "clock", "chair", "kettle", "mirror", "basket", "flute", "bowl",
    "brush", "bucket", "button", "candle", "carpet", "chest", "comb", "cup", "curtain", "cushion", "desk", "dish",
    "doll", "door", "dress", "fan", "feather", "flag", "fork", "frame", "globe", "glove", "goblet", "hammer",
    "harp", "helmet", "hook", "horn", "jacket", "jar", "jug", "kite", "knife", "ladder", "lantern", "lock", "map",
    "mask", "mattress", "medal", "mug", "needle", "net", "pan", "parasol", "pen", "pencil", "piano", "picture",
    "pillow", "pipe", "plate", "pot", "pouch", "quilt", "racket", "radio", "rake", "ribbon", "ring", "robe",
    "rope", "rug", "saddle", "sandal", "saw", "scarf", "screen", "shawl", "shelf", "shield", "shirt", "shoe",
    "shovel", "sieve", "skirt", "sled", "slipper", "soap", "sofa", "spade", "spoon", "stamp", "statue", "stool",
    "stove", "string", "suitcase", "sword", "table", "tent", "thimble", "tie", "torch", "towel", "toy", "tray",
    "trophy", "trumpet", "trunk", "tub", "vest", "violin", "wagon", "wallet", "watch", "wheel", "whistle", "wig",
    "wreath", "zither", "bag", "ball", "barrel", "bed", "bell", "belt", "bench", "blanket", "boat", "boot",
    "bottle", "box", "bracelet", "broom", "cage", "camera", "cap", "card", "cart", "chain", "coin", "cradle",
    "crown", "diary", "drawer", "banjo",
)  # fmt: skip
"""Names of all parcels; they are the same in every house. Each is one word: a policy has to learn what a name needs,
not how to read a name of two words."""
ROOMS = (
    "cellar", "attic", "kitchen", "garden", "stable", "pantry", "library", "workshop", "laundry", "chapel", "study",
    "nursery", "hall", "parlour", "gallery", "barn", "tower", "shed", "bakery", "mill",
)  # fmt: skip
"""Side rooms; they are the same in every house."""
RIGHT, NOTHING, ASIDE, BACK, SPOIL, END = "right", "nothing", "aside", "back", "spoil", "end"
EFFECTS = (RIGHT, NOTHING, NOTHING, ASIDE, ASIDE, BACK, SPOIL, END)
"""Effects of the eight tools on a parcel; each parcel has them in another order."""
SEALED_SHARE = 0.25
"""Share of the names whose parcels are sealed, in the environment that has sealed parcels."""

SEALED_PARCEL = "a sealed parcel"
NONE_LEFT = "no parcel is left"
ROUND_OVER = "the round is over"


class House(NamedTuple):
    """The tables of one house."""

    effects: Mapping[str, Mapping[str, str]]
    """Parcel -> tool -> effect."""
    side_rooms: Mapping[str, Mapping[str, str]]
    """Parcel -> tool -> room, for the two tools that lead aside; the two rooms differ."""
    ways_back: Mapping[str, str]
    """Room -> the one tool that leads back to the parcel."""
    sealed: frozenset[str]
    """Parcels whose name is hidden in the environment that has sealed parcels."""

    def right_tool(self, parcel: str) -> str:
        """The tool that a parcel needs."""
        return next(tool for tool, effect in self.effects[parcel].items() if effect == RIGHT)


@lru_cache(maxsize=4)
def make_house(number: int) -> House:
    """The house of that number, always the same."""
    rng = random.Random(f"house {number}")
    effects = {}
    side_rooms = {}
    for parcel in PARCELS:
        effects[parcel] = {tool: EFFECTS[number] for number, tool in enumerate(rng.sample(TOOLS, len(TOOLS)))}
        leading_aside = [tool for tool, effect in effects[parcel].items() if effect == ASIDE]
        rooms = rng.sample(ROOMS, len(leading_aside))
        side_rooms[parcel] = {tool: rooms[number] for number, tool in enumerate(leading_aside)}
    ways_back = {room: rng.choice(TOOLS) for room in ROOMS}
    sealed = frozenset(rng.sample(PARCELS, round(SEALED_SHARE * len(PARCELS))))
    return House(effects, side_rooms, ways_back, sealed)


def describe_parcel(parcel: str) -> str:
    """The words of every server for a parcel whose name shows."""
    return f"a {parcel}"


def describe_room(room: str) -> str:
    """The words of every server for a side room."""
    return f"in the {room}"
