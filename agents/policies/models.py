"""A policy together with what an agent needs to talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gymcp.agents.policies.prices import Price
from gymcp.agents.prompts.rendering import Renderer
from gymcp.agents.tool_calls.formats import Format
from gymcp.errors import AnswerTimeout, PromptTooLong
from gymcp.protocols import ChatPolicy, Policy
from gymcp.types import ModelUsage, RequestTimes, Sampled, Sampling

MIN_ANSWER_TOKENS = 32
"""Minimum number of tokens that a prompt must leave in the context for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One answer of a token model."""

    sampled: Sampled
    text: str
    """The sampled tokens decoded, without the token that ended the turn."""
    usage: ModelUsage
    times: RequestTimes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenModel:
    """A policy that takes and returns tokens, with its chat template, tool-call format, context size and price."""

    name: str
    policy: Policy
    renderer: Renderer
    parse_calls: Format
    """Reads tool calls out of the text of an answer."""
    context: int
    """Maximum number of tokens of prompt and answer together."""
    price: Price = field(default_factory=Price)
    timeout_s: float | None = None
    """Maximum seconds of one answer, beside those of the policy; None for no limit."""

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> Generated:
        """Sample one answer to the prompt; `sampling.max_tokens` is reduced to the room that the context has left.

        Raises PromptTooLong if fewer than `MIN_ANSWER_TOKENS` tokens are left, AnswerTimeout, and what the policy
        raises.
        """
        room = self.context - len(prompt)
        if room < MIN_ANSWER_TOKENS:
            raise PromptTooLong(f"{len(prompt)} tokens, and no room for an answer among {self.context}")
        try:
            async with asyncio.timeout(self.timeout_s) as deadline:
                sampled = await self.policy.sample(prompt, replace(sampling, max_tokens=min(sampling.max_tokens, room)))
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise AnswerTimeout(f"model '{self.name}': no answer within {self.timeout_s:g} s") from error
        text, usage = self.renderer.decode(sampled.ids), self.measure_usage(prompt, sampled.ids)
        return Generated(sampled=sampled, text=text, usage=usage, times=sampled.request_times)

    def measure_usage(self, prompt: Sequence[int], ids: Sequence[int]) -> ModelUsage:
        """Tokens and cost of an answer with these tokens to the prompt."""
        return ModelUsage(
            model=self.name,
            prompt_tokens=len(prompt),
            completion_tokens=len(ids),
            cost=self.price.of(len(prompt), len(ids)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModel:
    """A policy that takes messages and returns an action."""

    name: str
    policy: ChatPolicy


Model = TokenModel | ChatModel
