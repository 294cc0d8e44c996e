"""Adapter from any policy to a chat policy: a whole conversation in, one action out.

For models that are not trained, such as the one that plays a simulated user.
"""

from __future__ import annotations

from collections.abc import Sequence

from gymcp.agents.policies.models import Model, TokenModel
from gymcp.agents.tool_calls.parsing import CallIds, parse_action
from gymcp.protocols import ChatPolicy
from gymcp.types import Decision, Message, Sampling, Tool


def as_chat(model: Model) -> ChatPolicy:
    """The model behind the protocol that environments know."""
    return _RenderedChat(model) if isinstance(model, TokenModel) else model.policy


class _RenderedChat:
    """Renders the whole conversation again for each answer, with the model's own chat template."""

    def __init__(self, model: TokenModel) -> None:
        self._model = model

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        answer = await self._model.generate(self._model.renderer.first_prompt(messages, tools), sampling)
        action = parse_action(answer.text, tools, self._model.parse_calls, CallIds())
        return Decision(action=action, spent=answer.usage, request_times=answer.times)
