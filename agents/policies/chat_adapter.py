"""Any policy as a chat, a whole conversation in and one action out: for whoever is not trained, as simulated users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gymcp.agents.policies.models import LEAST_ANSWER, Model, TokenModel
from gymcp.agents.tool_calls.parsing import CallIds, parse_action
from gymcp.errors import PromptTooLong
from gymcp.protocols import ChatPolicy
from gymcp.types import Decision, Message, ModelUsage, Sampling, Tool


def as_chat(model: Model) -> ChatPolicy:
    """The model behind the protocol that environments know."""
    return _Rendered(model) if isinstance(model, TokenModel) else model.policy


class _Rendered:
    """Renders the conversation anew for each answer, by the model's own template."""

    def __init__(self, model: TokenModel) -> None:
        self._model = model

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        model = self._model
        prompt = model.renderer.start(messages, tools)
        room = model.context - len(prompt)
        if room < LEAST_ANSWER:
            raise PromptTooLong(f"{len(prompt)} tokens, and no room for an answer among {model.context}")
        drawn = await model.policy.sample(prompt, replace(sampling, max_tokens=min(sampling.max_tokens, room)))
        spent = ModelUsage(
            model=model.name,
            prompt_tokens=len(prompt),
            completion_tokens=len(drawn.ids),
            cost=model.price.of(len(prompt), len(drawn.ids)),
        )
        return Decision(action=parse_action(model.renderer.text(drawn.ids), tools, model.read, CallIds()), spent=spent)
