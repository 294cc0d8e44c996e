"""Adapter from any policy to a judge: one question, one answer, no tools."""

from __future__ import annotations

from collections.abc import Sequence

from gymcp.agents.policies.models import ChatModel, Model, TokenModel
from gymcp.protocols import Judge
from gymcp.types import Message, ModelUsage, Sampling


def as_judge(model: Model) -> Judge:
    """The model behind the protocol that evaluators know."""
    return _TokenJudge(model) if isinstance(model, TokenModel) else _ChatJudge(model)


class _ChatJudge:
    def __init__(self, model: ChatModel) -> None:
        self._model = model

    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        decision = await self._model.policy.chat(messages, (), sampling)
        return decision.action.text, decision.spent


class _TokenJudge:
    def __init__(self, model: TokenModel) -> None:
        self._model = model

    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        system = "\n\n".join(message.content for message in messages if message.role == "system")
        rest = [message for message in messages if message.role != "system"]
        answer = await self._model.generate(self._model.renderer.first_prompt(rest, (), system), sampling)
        return answer.text, answer.usage
