"""Transitions of tasks as text, as they stand in a checkpoint: compact, since a run may remember millions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from gymcp.trainers.settings.arrays import Ints

KEY_LENGTH = 16
"""Hexadecimal digits of a state key that are remembered: 64 bits of its digest."""
TRANSITION_LENGTH = 2 * KEY_LENGTH
"""Characters of a transition: the states before and after."""
GOAL = np.uint64(0)
"""State after the last step of a solved episode, as it is remembered."""
Codes = npt.NDArray[np.uint64]
Remembered = str | Sequence[Sequence[str]]
"""Transitions of a task, one behind the other; a checkpoint of an earlier version has pairs of states, with "" for the
goal."""
Transitions = Mapping[str, Remembered]
"""Transitions of each task."""
_take_head = itemgetter(slice(KEY_LENGTH))
_DIGITS = re.compile(f"[0-9a-fA-F]{{{KEY_LENGTH}}}")


def encode_states(keys: Sequence[str]) -> Codes:
    """[n] -> [n]: the first 64 bits of each key, or of its digest if the key is none."""
    heads = list(map(_take_head, keys))
    try:
        found = bytes.fromhex("".join(heads))
    except ValueError:
        found = b""
    if len(found) != 8 * len(heads):  # spaces do not count, and no head is longer: one of them is no digest
        found = bytes.fromhex("".join(head if _DIGITS.fullmatch(head) else _digest(head) for head in heads))
    return np.frombuffer(found, ">u8").astype(np.uint64)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:KEY_LENGTH]


def encode_transitions(pairs: Codes) -> str:
    """[n, 2] codes -> their text."""
    return pairs.astype(">u8").tobytes().hex()


def decode_transitions(remembered: Sequence[Remembered]) -> tuple[Codes, Ints]:
    """Transitions of several tasks -> [n, 2] codes of states, and [n] the place of each one's task."""
    texts = [each if isinstance(each, str) else _encode_pairs(each) for each in remembered]
    codes = np.frombuffer(bytes.fromhex("".join(texts)), ">u8").astype(np.uint64).reshape(-1, 2)
    counts = [len(text) // TRANSITION_LENGTH for text in texts]
    return codes, np.repeat(np.arange(len(texts)), counts)


def _encode_pairs(pairs: Sequence[Sequence[str]]) -> str:
    codes = encode_states([state for pair in pairs for state in pair]).reshape(-1, 2)
    codes[[pair[1] == "" for pair in pairs], 1] = GOAL
    return encode_transitions(codes)
