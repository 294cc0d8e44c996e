"""The same episodes with other names and ids: what is copied from one place to another can be anything.

A policy that has seen few names learns them by heart, and writes one of those where it should copy a new one. So what
an episode copies, and is written with a capital or a digit among letters (a name, an id, an address), is replaced
wherever it stands in that episode by other letters and digits of the same shape. Bare numbers stay: they are compared.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import replace

from gymcp.types import Action, Json, Message, Step, Trajectory

_NAMED = re.compile(r"[A-Za-z0-9]*[A-Z0-9][A-Za-z0-9]*")
_KIND = re.compile(r"[A-Z][0-9]+")
"""An id: its letter says what it is of, and stays."""


def respelt(record: Trajectory, rng: random.Random) -> Trajectory:
    """The record with other names, as what is shown and done has them; states and scores stay those of the original."""
    words = {
        word
        for written in _written(record)
        for word in _NAMED.findall(written)
        if not word.isdigit() and any(word in shown for shown in _shown(record))
    }
    if not words:
        return record
    other = {word: _alike(word, rng) for word in sorted(words)}
    either = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    found = re.compile(rf"(?<![A-Za-z0-9])(?:{either})(?![A-Za-z0-9])")

    def change(text: str) -> str:
        return found.sub(lambda match: other[match[0]], text)

    return replace(record, steps=tuple(_changed(step, change) for step in record.steps))


def _shown(record: Trajectory) -> Iterator[str]:
    return (message.content for step in record.steps for message in step.observation.messages)


def _written(record: Trajectory) -> Iterator[str]:
    for step in record.steps:
        yield step.action.text
        for call in step.action.tool_calls:
            yield from _texts(call.arguments)


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _alike(word: str, rng: random.Random) -> str:
    """Other letters and digits in the same places."""
    kept = 1 if _KIND.fullmatch(word) else 0
    return word[:kept] + "".join(rng.choice(_ALPHABET[_sort(character)]) for character in word[kept:])


_ALPHABET = {"small": string.ascii_lowercase, "capital": string.ascii_uppercase, "digit": string.digits}


def _sort(character: str) -> str:
    return "digit" if character.isdigit() else "small" if character.islower() else "capital"


def _changed(step: Step, change: Callable[[str], str]) -> Step:
    messages: tuple[Message, ...] = tuple(
        replace(message, content=change(message.content)) for message in step.observation.messages
    )
    calls = tuple(replace(call, arguments=_mapped(call.arguments, change)) for call in step.action.tool_calls)
    action: Action = replace(step.action, text=change(step.action.text), tool_calls=calls)
    return replace(step, observation=replace(step.observation, messages=messages), action=action)


def _mapped(value: Json, change: Callable[[str], str]) -> Json:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value
