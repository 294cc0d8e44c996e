"""Any policy as a judge: asked one thing, without tools."""

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
        decided = await self._model.policy.chat(messages, (), sampling)
        return decided.action.text, decided.spent


class _TokenJudge:
    def __init__(self, model: TokenModel) -> None:
        self._model = model

    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        system = "\n\n".join(message.content for message in messages if message.role == "system")
        rest = [message for message in messages if message.role != "system"]
        prompt = self._model.renderer.start(rest, (), system)
        drawn = await self._model.policy.sample(prompt, sampling)
        spent = ModelUsage(
            model=self._model.name,
            prompt_tokens=len(prompt),
            completion_tokens=len(drawn.ids),
            cost=self._model.price.of(len(prompt), len(drawn.ids), 0),
        )
        return self._model.renderer.text(drawn.ids), spent
