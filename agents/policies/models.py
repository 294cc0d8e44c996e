"""A policy together with what an agent needs to talk to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gymcp.agents.policies.prices import Price
from gymcp.agents.prompts.rendering import Renderer
from gymcp.agents.tool_calls.formats import Format
from gymcp.protocols import ChatPolicy, Policy

LEAST_ANSWER = 32
"""Tokens that must be left of the context for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenModel:
    """A policy with what it takes to talk to it."""

    name: str
    policy: Policy
    renderer: Renderer
    read: Format
    context: int
    """Tokens of prompt and answer together."""
    price: Price = field(default_factory=Price)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModel:
    name: str
    policy: ChatPolicy


Model = TokenModel | ChatModel
