"""Gymnasium spaces for text and for the records of a tool-calling episode, and conversion between space and record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from gymcp.errors import ConfigError
from gymcp.types import Action, Message, Observation, Tool, ToolCall

SAMPLE_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 _-.,{}[]\"':\n"
"""Characters of sampled strings."""
MAX_SAMPLE_CHARS = 40
"""Length that sampled strings stay below."""


class AnyText(spaces.Space[str]):
    """The space of all Python strings; `gymnasium.spaces.Text` requires a finite alphabet, and language has none."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=(), dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A short string over a small alphabet of letters and JSON punctuation; masks are not supported."""
        size = int(self.np_random.integers(0, MAX_SAMPLE_CHARS))
        return "".join(SAMPLE_ALPHABET[i] for i in self.np_random.integers(0, len(SAMPLE_ALPHABET), size))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "AnyText()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    def __hash__(self) -> int:
        return hash(AnyText)


def action_space() -> spaces.Dict:
    """The space of actions: a text and tool calls, whose arguments are JSON text."""
    call = spaces.Dict({"name": AnyText(), "arguments": AnyText()})
    return spaces.Dict({"text": AnyText(), "tool_calls": spaces.Sequence(call)})


def observation_space() -> spaces.Dict:
    """The space of observations: the messages since the last action, and the tools on offer."""
    message = spaces.Dict(
        {"role": AnyText(), "content": AnyText(), "tool_call_id": AnyText(), "is_error": spaces.Discrete(2)}
    )
    tool = spaces.Dict({"name": AnyText(), "description": AnyText(), "input_schema": AnyText()})
    return spaces.Dict({"messages": spaces.Sequence(message), "tools": spaces.Sequence(tool)})


def to_action(value: Action | Mapping[str, Any], step: int) -> Action:
    """Convert an element of the action space to a record; an `Action` is returned as it is.

    The id of a call is made of `step` and the call's place, so an episode that is played again has the same ids.
    Raises ConfigError for any other value.
    """
    if isinstance(value, Action):
        return value
    _check_keys("action", value, ("text", "tool_calls"))
    for call in value["tool_calls"]:
        _check_keys("action: a tool call", call, ("name", "arguments"))
    calls = tuple(
        ToolCall(id=f"call_{step}_{index}", name=call["name"], arguments=call["arguments"])
        for index, call in enumerate(value["tool_calls"])
    )
    return Action(text=value["text"], tool_calls=calls)


def _check_keys(what: str, value: object, keys: tuple[str, ...]) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what} must be a mapping with {' and '.join(keys)}, not {type(value).__name__}")
    if missing := [key for key in keys if key not in value]:
        raise ConfigError(f"{what} lacks {' and '.join(missing)}; it must have {' and '.join(keys)}")


def from_observation(observation: Observation) -> dict[str, Any]:
    """The element of the observation space for a record."""
    return {
        "messages": tuple(_message(message) for message in observation.messages),
        "tools": tuple(_tool(tool) for tool in observation.tools),
    }


def _message(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "tool_call_id": message.tool_call_id or "",
        "is_error": np.int64(message.is_error),
    }


def _tool(tool: Tool) -> dict[str, Any]:
    schema = json.dumps(tool.input_schema, sort_keys=True)
    return {"name": tool.name, "description": tool.description, "input_schema": schema}
