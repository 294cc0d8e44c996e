"""The use of a model in one decision of an agent, however often the agent asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from gymcp.agents.policies.models import Model, TokenModel
from gymcp.agents.policies.prices import Price
from gymcp.protocols import ChatPolicy, Policy
from gymcp.types import Decision, Message, ModelUsage, Sampled, Sampling, Tool

_meter: ContextVar[list[ModelUsage] | None] = ContextVar("gymcp_meter", default=None)


@contextmanager
def meter_usage() -> Iterator[list[ModelUsage]]:
    """The usage of metered models by this task, and by tasks that it starts, while the context lasts."""
    usages: list[ModelUsage] = []
    token = _meter.set(usages)
    try:
        yield usages
    finally:
        _meter.reset(token)


def meter_model(model: Model) -> Model:
    """The model, whose answers are counted by `meter_usage`."""
    if isinstance(model, TokenModel):
        return replace(model, policy=_MeteredPolicy(policy=model.policy, name=model.name, price=model.price))
    return replace(model, policy=_MeteredChatPolicy(policy=model.policy))


def sum_usages(usages: Sequence[ModelUsage]) -> ModelUsage | None:
    """The usage of several answers as that of one decision; None if there was none."""
    if not usages:
        return None
    return ModelUsage(
        model=usages[0].model,
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cost=sum(usage.cost for usage in usages),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeteredPolicy:
    policy: Policy
    name: str
    price: Price

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        sampled = await self.policy.sample(prompt_ids, sampling)
        read, drawn = len(prompt_ids), len(sampled.ids)
        cost = self.price.of(read, drawn)
        _count(ModelUsage(model=self.name, prompt_tokens=read, completion_tokens=drawn, cost=cost))
        return sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeteredChatPolicy:
    policy: ChatPolicy

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        decision = await self.policy.chat(messages, tools, sampling)
        if decision.spent is not None:
            _count(decision.spent)
        return decision


def _count(usage: ModelUsage) -> None:
    usages = _meter.get()
    if usages is not None:
        usages.append(usage)
